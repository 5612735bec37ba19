"""Compares the answer to the test prompt with the one that earlier groups gave under the same conditions. Pure."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence

from thunderfleet_crds.exchange.plan import Plan, RecordedAnswer

CLEAR_THOUSANDTHS = 500
"""Tolerance of log probabilities: logits in bfloat16 are rounded to an eighth, and may be added up in another order."""
MOST = 1_000_000


def key(plan: Plan, digest: str, weights: str, kinds: Mapping[int, int], versions: Sequence[str]) -> str:
    """A digest of everything that an answer depends on. ``kinds``: of the Macs, by rank; ``versions``: of libraries."""
    inputs = [
        digest, weights, plan.split, plan.backend, [entry.layers for entry in plan.ranks],
        [kinds[rank] for rank in sorted(kinds)], list(versions), sorted(plan.runtime.environment.items()),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()


def record(key: str, tokens: Sequence[int], costs: Sequence[float], margins: Sequence[float]) -> RecordedAnswer:
    """An answer in the form that is recorded for comparison."""
    return RecordedAnswer(key=key, tokens=tuple(tokens), costs=thousandths(costs), margins=thousandths(margins))


def thousandths(values: Sequence[float]) -> tuple[int, ...]:
    """Thousandths as integers from 0 to MOST."""
    return tuple(min(MOST, max(0, round(1000 * value))) if math.isfinite(value) else MOST for value in values)


def differs(before: RecordedAnswer, now: RecordedAnswer) -> str | None:
    """What is wrong with an answer. Differences count only where a token of the earlier answer was clearly the likeliest.

    A token may differ where another one was about as likely. The tokens after it have another context then, and are not
    compared.
    """
    earlier = zip(before.tokens, before.costs, before.margins, strict=False)
    for place, (token, cost, margin) in enumerate(earlier):
        if place >= len(now.tokens) or place >= len(now.costs):
            return f"the answer to the test prompt has {place} tokens; {_SAME} it had {len(before.tokens)}"
        if now.tokens[place] != token and margin > CLEAR_THOUSANDTHS:
            return (
                f"token {place + 1} of the answer to the test prompt is {now.tokens[place]}; {_SAME} it was {token}, "
                "which was clearly the most likely"
            )
        if abs(now.costs[place] - cost) > CLEAR_THOUSANDTHS:
            return (
                f"the log probability of token {place + 1} of the answer to the test prompt is {-now.costs[place] / 1000:g}; "
                f"{_SAME} it was {-cost / 1000:g}"
            )
        if now.tokens[place] != token:
            return None
    return None


_SAME = "with the same weights, chips and versions"
