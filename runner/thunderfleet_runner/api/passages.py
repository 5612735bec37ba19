"""Prompts with a known continuation: a passage of known tokens, followed by a part of the same passage. Pure.

Greedy decoding continues that part if the model can copy, and if its weights, its caches and the data that its ranks exchange
are correct. The lengths take one, two and five steps of a prompt. Each passage is used for two questions: one repeats its
beginning, which lies in the first step, the other a part that crosses into the last step. Some models cannot copy over long
distances, so a wrong answer is a failure only for a length that the same weights have passed before.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

CONTROL = 300
SERVED = 2600
"""The longest passage that is continued before the group serves, where that has been passed before."""
LENGTHS = (CONTROL, SERVED, 9000)
REPEATED = 32
"""Number of tokens of the passage that must follow it in the answer."""
CONTINUED = 16
STEP = 2048
"""Tokens of one step of a prompt."""


@dataclass(frozen=True)
class Question:
    """A passage, a part of it, and the tokens that follow that part in the passage."""

    passage: tuple[int, ...]
    part: tuple[int, ...]
    answer: tuple[int, ...]

    def wrong(self, found: Sequence[int]) -> str | None:
        """What is wrong with the model's answer."""
        for place, right in enumerate(self.answer):
            said = found[place] if place < len(found) else None
            if said != right:
                got = said if said is not None else "missing"
                at = self.passage.index(right)
                return (
                    f"the prompt was a passage of {len(self.passage)} tokens and then {len(self.part)} of these tokens again; "
                    f"token {place + 1} of the answer is {got} instead of {right}, which is at place {at} of the passage"
                )
        return None


def fitting(context: int, vocabulary: int) -> tuple[int, ...]:
    """The lengths that fit into a context, and for which a vocabulary has enough different tokens."""
    most = min(context - REPEATED - CONTINUED, len(_pool(vocabulary)))
    return tuple(length for length in LENGTHS if length <= most)


def _pool(vocabulary: int) -> range:
    """Range of token ids without the special tokens at both ends of a vocabulary and without the rarest tokens."""
    return range(vocabulary // 32, vocabulary // 2)


def passage(length: int, vocabulary: int) -> tuple[int, ...]:
    """Different tokens, so that there is one right continuation. The same for all models with as many tokens."""
    pool = _pool(vocabulary)
    # This step visits the whole pool before it repeats a token.
    step = next(step for step in itertools.count(5 * len(pool) // 8) if math.gcd(step, len(pool)) == 1)
    return tuple(pool[number * step % len(pool)] for number in range(length))


def questions(length: int, vocabulary: int) -> tuple[Question, Question, Question]:
    """By the beginning, and by a part that crosses into the last step; the third one is for the prompt cache."""
    tokens = passage(length, vocabulary)
    crossing = (length - 1) // STEP * STEP - REPEATED - CONTINUED // 2 if length > STEP else length // 2
    return _question(tokens, 0), _question(tokens, crossing), _question(tokens, length // 3)


def _question(tokens: tuple[int, ...], start: int) -> Question:
    end = start + REPEATED
    return Question(tokens, tokens[start:end], tokens[end : end + CONTINUED])


@dataclass(frozen=True)
class Answers:
    """The results of the questions. ``before``: lengths that these weights passed in earlier attempts and placements."""

    digest: str = ""
    before: frozenset[int] = frozenset()
    passed: frozenset[int] = frozenset()
    """Lengths that were passed in this attempt."""
    failed: tuple[tuple[int, str], ...] = ()
    """Lengths that failed in this attempt and that these weights have never passed, each with what was wrong."""
    suspect: int | None = None
    """The length for which an earlier attempt failed."""

    def again(self, digest: str, known: Iterable[int] = ()) -> "Answers":
        """The results for the next attempt. ``known``: lengths that these weights passed in earlier placements."""
        same = digest == self.digest
        before = (self.before | self.passed if same else frozenset()) | frozenset(known)
        return Answers(digest, before, suspect=self.suspect if same else None)

    @property
    def ever(self) -> tuple[int, ...]:
        """All lengths that these weights have passed."""
        return tuple(sorted(self.before | self.passed)) if self.digest else ()

    @property
    def able(self) -> bool:
        """Whether the model can continue a short passage, as far as is known."""
        return not any(length == CONTROL for length, _ in self.failed)

    def first(self, fit: Sequence[int]) -> tuple[int, ...]:
        """Lengths to check before the group serves, of those that fit: only lengths that were passed before."""
        most = max(SERVED, self.suspect or 0)
        return tuple(length for length in fit if length in self.before and length <= most)

    def due(self, fit: Sequence[int]) -> int | None:
        """The next length to check while the group is idle, of those that fit."""
        asked = self.passed | {length for length, _ in self.failed}
        return next((length for length in fit if length not in asked), None) if self.able else None

    def right(self, length: int) -> "Answers":
        """A passage of this length was continued."""
        return replace(self, passed=self.passed | {length})

    def wrong(self, length: int, text: str) -> "Answers":
        """A passage of this length, which these weights have never passed, was not continued."""
        return replace(self, failed=(*self.failed, (length, text)))

    def unlike(self, length: int) -> "Answers":
        """A passage of this length was not continued, although these weights have passed it before."""
        return replace(self, suspect=length)
