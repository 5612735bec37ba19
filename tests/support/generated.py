"""How many generated inputs a test sees: a run of the tests, or ``make fuzz``."""

import os
from typing import Final

USUAL: Final = 100
"""Hypothesis' number for a test that says nothing else."""
FUZZ: Final = os.environ.get("HYPOTHESIS_PROFILE") == "fuzz"
EXAMPLES: Final = int(os.environ.get("THUNDERFLEET_FUZZ_EXAMPLES", "20000"))
"""Of such a test in ``make fuzz``."""


def examples(usual: int) -> int:
    """The number of inputs of a test that sees ``usual`` in a run of the tests, because each takes long or is worth more."""
    return max(usual, min(EXAMPLES, usual * EXAMPLES // USUAL)) if FUZZ else usual
