"""Routers on a cluster: a wake from zero against a deployment that is applied, and requests through a router against others."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator

from tests.bench import models
from tests.bench.baseline import Baseline
from tests.bench.figures import Bound, Figure
from tests.bench.groups.serving import MEMORY, TOKENS, first, rate
from tests.bench.line import NAMESPACE, ROOT, WAIT_SECONDS, Json, Line, chat

CLIENTS = (1, 16)
NAME = "waking"
QUICK: Json = {"benchmark": {"promptTokens": 2, "generationTokens": 1}}
SLEEPY: Json = QUICK | {"autoscaling": {"minReplicas": 0, "maxReplicas": 1, "scaleToZeroAfterSeconds": 3}}

Say = Callable[[str], None]


def _upgrade(line: Line, values: str) -> None:
    line.cluster.helm(
        *("upgrade", "thunderfleet", str(ROOT / "charts/thunderfleet"), "--namespace", NAMESPACE, "--reuse-values", "--wait"),
        *("--set", values, "--timeout", "180s"),
        seconds=200,
    )


@contextlib.contextmanager
def _routers(line: Line) -> Iterator[None]:
    """Routers on all Macs, which wake for anyone."""
    _upgrade(line, "router.enabled=true,router.anonymousWake=true")
    try:
        yield
    finally:
        _upgrade(line, "router.enabled=false")


def _router(line: Line, name: str) -> tuple[str, str]:
    """Node and URL of a router that serves the deployment."""
    line.wait(lambda: bool(line.deployment(name)["status"].get("endpoints")), f"{name} has routers", 0.3)
    found = line.deployment(name)["status"]["endpoints"][0]
    return found["node"], found["url"]


def _asleep(line: Line, name: str) -> bool:
    pods = line.cluster.kubectl("get", "pods", "-l", f"thunderfleet.io/deployment={name}", "-o", "json").stdout
    return not line.deployment(name)["status"].get("groups") and not json.loads(pods)["items"]


def _waking(line: Line, repeats: int, say: Say) -> list[Figure]:
    """Seconds to the first token through one router, in turns: of a model that sleeps, and of one that is applied.

    On both sides a client asks at once and the router lets it wait, so neither side waits for a status or for a look at one.
    """
    woken, applied = list[float](), list[float]()
    with line.deployed("sleepy", models.TINY, "Tensor", SLEEPY):
        node, url = _router(line, "sleepy")
        for number in range(repeats):
            line.wait(lambda: _asleep(line, "sleepy"), "the model sleeps", 0.5)
            began = line.apply(NAME, models.TINY, "Tensor", QUICK)
            try:
                applied.append(line.ask_on(node, url, f"default/{NAME}", 1)["wall"] - began)
            finally:
                line.delete(NAME)
            began = time.time()
            woken.append(line.ask_on(node, url, "default/sleepy", 1)["wall"] - began)
            say(f"wake {number + 1}/{repeats}: {woken[-1]:.2f} s, apply {applied[-1]:.2f} s")
    note = f"median of {repeats}, two ranks; a client that asks at once, through the same router"
    return [Figure("wake from zero", "s", tuple(woken), tuple(applied), "apply", Bound("<=", 1.2), note)]


def _compared(line: Line, repeats: int, say: Say) -> list[Figure]:
    """A router against the group's gateway and mlx_lm.server, in turns, on the same machine."""
    figures = []
    model = line.cluster.models / models.SMALL
    with line.deployed("routed", models.SMALL, "Pipeline", MEMORY | QUICK), Baseline(model, "Pipeline") as started:
        started.ask(chat(max(TOKENS.values())), WAIT_SECONDS)
        started.pause()
        line.benchmarked("routed")
        node, url = _router(line, "routed")
        direct = line.deployment("routed")["status"]["groups"][0]["endpoint"]
        for clients in CLIENTS:
            sides: dict[str, list[tuple[float, float]]] = {"router": [], "gateway": [], "mlx_lm.server": []}
            # The first round of a size compiles its shapes.
            for number in range(repeats + 1):
                for place, side in enumerate(sides):
                    at_once = (clients, 10_000 * clients + 10 * number + place)
                    if side == "mlx_lm.server":
                        started.resume()
                        answer = started.ask(chat(TOKENS[clients]), WAIT_SECONDS, at_once)
                        started.pause()
                    else:
                        asked, name = (url, "default/routed") if side == "router" else (direct, models.SMALL)
                        answer = line.ask_on(node, asked, name, TOKENS[clients], at_once)
                    if number:
                        sides[side].append((rate(answer), first(answer)))
            say(
                f"routed, {clients} clients: "
                + ", ".join(f"{side} {found[-1][0]:.0f} tokens/s" for side, found in sides.items())
            )
            figures += _figures(clients, sides)
    return figures


def _figures(clients: int, sides: dict[str, list[tuple[float, float]]]) -> list[Figure]:
    found = []
    rates = {side: tuple(one[0] for one in measured) for side, measured in sides.items()}
    firsts = {side: tuple(one[1] for one in measured) for side, measured in sides.items()}
    name = f"routed {clients} client{'s' if clients > 1 else ''}"
    for other in ("gateway", "mlx_lm.server"):
        least = 0.98 if other == "mlx_lm.server" else 0.99
        note = f"median of {len(rates[other])}, {TOKENS[clients]} tokens a client, prompts never seen before"
        found.append(Figure(name, "tokens/s", rates["router"], rates[other], other, Bound(">=", least), note))
        found.append(Figure(f"{name}, first", "ms", firsts["router"], firsts[other], other, note=note))
    return found


def figures(line: Line, repeats: int, say: Say) -> list[Figure]:
    """Wake from zero, and what a router costs with real ranks."""
    with _routers(line):
        return [*_waking(line, 2 * repeats + 1, say), *_compared(line, 2 * repeats + 1, say)]
