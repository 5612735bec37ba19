"""The step budget of a search: what bounds the time of a plan on every fleet.

A step is a few microseconds of work: to add one Mac to a path, a set or an order. What costs more than that, because it grows
with the number of Macs, hops or layers that it looks at, takes as many steps as it costs. What takes no steps is done once for
each Mac, cable or dial of the fleet, however the fleet is wired: to sort the Macs, to find their hops and the parts of the
fleet that groups can form in. So a plan takes time in proportion to the fleet, and at most that of its steps beyond.
"""


class StepBudget:
    """Steps that are left. Steps are counted, not timed, so that equal inputs give equal outputs."""

    def __init__(self, steps: int) -> None:
        self.left = steps
        self.exhausted = False

    def step(self) -> bool:
        """Takes a step; False if none is left."""
        if self.left <= 0:
            self.exhausted = True
            return False
        self.left -= 1
        return True

    def afford(self, steps: int) -> bool:
        """Takes several steps; False, and none is taken, if fewer are left."""
        if self.left < steps:
            self.exhausted = True
            return False
        self.left -= steps
        return True

    def spend(self, steps: int) -> None:
        """Takes several steps at once, possibly more than are left."""
        self.left -= steps
