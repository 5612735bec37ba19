"""Many clients at once, through the gateway and at bare mlx_lm.server on the same two ranks (ring, pipeline)."""

import statistics
import time
from collections.abc import Callable

from tests.bench import models
from tests.bench.baseline import Baseline
from tests.bench.figures import Bound, Figure
from tests.bench.line import WAIT_SECONDS, BenchFailed, Json, Line, chat

CLIENTS = (1, 4, 16)
TOKENS = {1: 64, 4: 48, 16: 32}
"""Requests per client, by number of clients."""
SIZE_SECONDS = 90.0
"""For one number of clients, both sides; then those rounds count that there are, if they are enough."""
LEAST_ROUNDS = 3
MEMORY = {"memory": {"contextTokens": 2048, "concurrentRequests": max(CLIENTS), "cachedTokens": 4096}}

Say = Callable[[str], None]


def rate(answer: Json) -> float:
    """Tokens per second of all clients together, from their start to the last token. Raises BenchFailed for short answers."""
    clients, tokens = len(answer["answers"]), sum(one["tokens"] for one in answer["answers"])
    if tokens < TOKENS[clients] * clients // 2:
        raise BenchFailed(f"only {tokens} tokens came for {len(answer['answers'])} clients, no rate can be said")
    return float(tokens / answer["seconds"])


def first(answer: Json) -> float:
    """The median client's time to its first token, in milliseconds."""
    return 1000 * float(statistics.median(one["first"] for one in answer["answers"]))


def serving(line: Line, repeats: int, say: Say) -> list[Figure]:
    """Tokens per second and time to first token. The two sides alternate; the other one is frozen or asleep."""
    figures = []
    model = line.cluster.models / models.SMALL
    with line.deployed("serving", models.SMALL, "Pipeline", MEMORY) as (_, ready, _), Baseline(model, "Pipeline") as started:
        node = line.deployment("serving")["status"]["groups"][0]["ranks"][0]["node"]
        started.ask(chat(max(TOKENS.values())), WAIT_SECONDS)
        started.pause()
        line.benchmarked("serving")
        for clients in CLIENTS:
            ours, hand, tokens = list[tuple[float, float]](), list[tuple[float, float]](), TOKENS[clients]
            until = time.monotonic() + SIZE_SECONDS
            # The first round of a size compiles its shapes, on both sides.
            for number in range(2 * repeats + 2):
                if len(ours) >= LEAST_ROUNDS and time.monotonic() > until:
                    say(f"serving {clients}: {SIZE_SECONDS:g} s are over after {len(ours)} rounds")
                    break
                at_once = (clients, 1000 * clients + number)
                mine = line.ask_on(node, ready.endpoint, models.SMALL, tokens, at_once)
                started.resume()
                other = started.ask(chat(tokens), WAIT_SECONDS, at_once)
                started.pause()
                if number:
                    ours.append((rate(mine), first(mine)))
                    hand.append((rate(other), first(other)))
                    say(f"serving {clients} {number}/{2 * repeats + 1}: {ours[-1][0]:.0f} tokens/s, by hand {hand[-1][0]:.0f}")
            note = f"median of {len(ours)}, {tokens} tokens a client, prompts never seen before"
            rates = tuple(entry[0] for entry in ours), tuple(entry[0] for entry in hand)
            firsts = tuple(entry[1] for entry in ours), tuple(entry[1] for entry in hand)
            name = f"serving {clients} client{'s' if clients > 1 else ''}"
            figures.append(Figure(name, "tokens/s", *rates, "mlx_lm.server", Bound(">=", 0.98), note))
            figures.append(Figure(f"{name}, first", "ms", *firsts, "mlx_lm.server", Bound("<=", 1 / 0.98), note))
    return figures
