"""The step budget of a search."""


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
