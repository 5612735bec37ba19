"""The step budget of a search: what bounds the time of a plan on every fleet.

A step is a few microseconds of work: adding one Mac to a path, a set or an order. Work that grows with the number of Macs, hops
or layers takes a proportional number of steps. Work that is done once for each Mac, cable or reachable address takes no steps:
sorting the Macs, and finding their hops and the parts of the fleet in which groups can form. So the time of a plan is bounded
by a part that is proportional to the fleet, and by the time of its steps.
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
