"""How long a step of the model may be expected to take, by the steps before it. Pure."""

from dataclasses import dataclass, field
from typing import Literal

Shape = Literal["loading", "collective", "prefill", "decode"]

LEAST_TOKENS = 256
"""A step with fewer tokens counts as one with this many, because reading all weights takes most of its time."""


@dataclass(frozen=True)
class Step:
    """One step: ``tokens`` are computed together, and attend to at most ``context`` tokens, these among them."""

    shape: Shape
    tokens: int = 1
    context: int = 1


@dataclass(frozen=True)
class Expected:
    """The longest time that a step should take by the steps seen. ``known``: a step as large has been seen."""

    seconds: float = 0.0
    known: bool = False


@dataclass
class StepTimes:
    """The slowest steps so far, by shape and context length. Bounded: one entry for each power of two of the context."""

    _slowest: dict[Shape, dict[int, float]] = field(default_factory=dict)
    """Seconds a token, by shape and by the power of two that is not longer than the context."""
    _largest: dict[Shape, int] = field(default_factory=dict)

    def add(self, step: Step, seconds: float) -> None:
        """A step has ended after ``seconds``."""
        slowest = self._slowest.setdefault(step.shape, {})
        power = _power(step.context)
        slowest[power] = max(slowest.get(power, 0.0), seconds / _counted(step.tokens))
        self._largest[step.shape] = max(self._largest.get(step.shape, 0), _counted(step.tokens))

    def expected(self, step: Step) -> Expected:
        """What ``step`` should take.

        A step at a longer context than any before is expected to be slower in proportion, as if all its time were attention.
        """
        slowest = self._slowest.get(step.shape)
        if not slowest:
            return Expected()
        power = _power(step.context)
        if shorter := [known for known in slowest if known <= power]:
            nearest = max(shorter)
            rate = slowest[nearest] * (power / nearest)
        else:
            rate = slowest[min(slowest)]
        return Expected(rate * _counted(step.tokens), _counted(step.tokens) <= self._largest[step.shape])


def _counted(tokens: int) -> int:
    return max(tokens, LEAST_TOKENS)


def _power(context: int) -> int:
    return 1 << (max(context, 1).bit_length() - 1)
