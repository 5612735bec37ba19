"""The benchmarks: each measures one promise on a running cluster and returns its figures."""

import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.bench import installing, models, processes
from tests.bench.baseline import Baseline
from tests.bench.figures import Bound, Figure
from tests.bench.fleets import commands, memory, page, scale, scrape, sizes
from tests.bench.fleets.written import NotWritten
from tests.bench.groups import cables, dialects, formation, masks, proofs, serving, speculation
from tests.bench.line import WAIT_SECONDS, BenchFailed, Line, Split, chat
from tests.bench.macs import discovery, kubelet, macpods, measure
from tests.bench.planner import placement
from tests.bench.routing import metering, routing, waking
from tests.bench.transfers import copies, images, weights
from tests.support import audit

DECODE_TOKENS = 64
SUPERVISOR_MEGABYTES = 80
MAC_MEGABYTES = 120
"""What kubelet and agent may take of a Mac that is idle."""
QUIET_SECONDS = 90.0
SETTLE_SECONDS = 20.0
"""Seconds without a write before the cluster counts as quiet. REST_SECONDS is the limit of that wait."""
REST_SECONDS = 180.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Benchmark:
    """``run`` takes the cluster, the number of repeats, and a function that prints progress."""

    name: str
    about: str
    run: Callable[[Line, int, Say], list[Figure]]


@dataclass(frozen=True)
class Alone:
    """A benchmark with a control plane of its own, which runs before the cluster of the others is started.

    ``run`` takes a function that prints progress. Raises BenchFailed, LocalClusterError.
    """

    name: str
    about: str
    run: Callable[[Say], list[Figure]]


def scaling(say: Say) -> list[Figure]:
    """The operator of large fleets."""
    try:
        return scale.figures(say)
    except (scale.NotInTime, NotWritten) as error:
        raise BenchFailed(str(error)) from error


def showing(say: Say) -> list[Figure]:
    """The commands that show a large fleet."""
    try:
        return commands.figures(say)
    except NotWritten as error:
        raise BenchFailed(str(error)) from error


def up(line: Line, repeats: int, say: Say) -> list[Figure]:
    """The start of the cluster that the other benchmarks use."""
    seconds = line.cluster.start_seconds
    if seconds is None:
        raise BenchFailed("the cluster does not report how long its start took")
    return [Figure("up", "s", (seconds,), note=f"{len(line.cluster.machines)} machines, programs built")]


def first_token(line: Line, repeats: int, say: Say) -> list[Figure]:
    """From apply to the first token, against mlx.launch; one after the other, so that both see the same machine."""
    ours, hand, ready_after = [], [], []
    model = line.cluster.models / models.TINY
    for number in range(repeats):
        with Baseline(model, "Tensor") as started:
            answer = started.ask(chat(1), WAIT_SECONDS)
            hand.append(answer["wall"] - started.began)
        with line.deployed("first", models.TINY, "Tensor") as (began, ready, _):
            answer = line.ask("first", ready.endpoint, models.TINY, 1)
            ours.append(answer["wall"] - began)
            ready_after.append(ready.at - began)
        took = f"{ours[-1]:.2f} s (Ready after {ready_after[-1]:.2f}), by hand {hand[-1]:.2f} s"
        say(f"first-token {number + 1}/{repeats}: {took}")
    note = f"median of {repeats}; Ready after {statistics.median(ready_after):.2f} s"
    return [Figure("first-token", "s", tuple(ours), tuple(hand), "mlx.launch", Bound("<=", 1.3), note)]


def _decode(line: Line, split: Split, repeats: int, say: Say) -> Figure:
    model = line.cluster.models / models.SMALL
    name = f"decode-{split.lower()}"
    ours, hand = [], []

    def rate(answer: dict[str, float]) -> float:
        if answer["chunks"] < DECODE_TOKENS // 2:
            raise BenchFailed(f"{name}: only {answer['chunks']} tokens arrived, too few to compute a rate")
        return (answer["chunks"] - 1) / (answer["last"] - answer["first"])

    with line.deployed(name, models.SMALL, split) as (_, ready, _), Baseline(model, split) as started:
        node = line.deployment(name)["status"]["groups"][0]["ranks"][0]["node"]
        started.ask(chat(DECODE_TOKENS), WAIT_SECONDS)
        started.pause()
        line.benchmarked(name)
        line.ask_on(node, ready.endpoint, models.SMALL, DECODE_TOKENS)
        for number in range(repeats):
            ours.append(rate(line.ask_on(node, ready.endpoint, models.SMALL, DECODE_TOKENS)))
            started.resume()
            hand.append(rate(started.ask(chat(DECODE_TOKENS), WAIT_SECONDS)))
            started.pause()
            say(f"{name} {number + 1}/{repeats}: {ours[-1]:.1f} tokens/s, by hand {hand[-1]:.1f}")
    note = f"median of {repeats}, {DECODE_TOKENS} tokens each"
    return Figure(name, "tokens/s", tuple(ours), tuple(hand), "mlx_lm.server", Bound(">=", 0.95), note)


def decode(line: Line, repeats: int, say: Say) -> list[Figure]:
    """Tokens per second of one stream as a client sees them, with tensor and with pipeline parallelism."""
    return [_decode(line, split, 2 * repeats + 1, say) for split in ("Tensor", "Pipeline")]


def recovery(line: Line, repeats: int, say: Say) -> list[Figure]:
    """From the end of a rank until the deployment is Ready again, compared with a fresh start."""
    again, fresh = [], []
    for number in range(repeats):
        with line.deployed("recovery", models.TINY, "Tensor") as (began, ready, watch):
            fresh.append(ready.at - began)
            line.benchmarked("recovery")
            killed = line.kill_rank(1)
            watch.until(lambda seen: not seen.ready, "not Ready after a rank was killed")
            back = watch.until(lambda seen: seen.ready, "Ready again")
            again.append(back.at - killed)
        say(f"recovery {number + 1}/{repeats}: {again[-1]:.2f} s, fresh start {fresh[-1]:.2f} s")
    note = f"median of {repeats}; SIGKILL to rank 1 until status shows Ready"
    return [Figure("recovery", "s", tuple(again), tuple(fresh), "fresh start", Bound("<=", 2.0), note)]


def idle(line: Line, repeats: int, say: Say) -> list[Figure]:
    """Memory, processor time and writes to the API server while the cluster is idle for 90 seconds."""
    if not processes.PROC.is_dir():
        raise BenchFailed("memory and processor time are read from /proc, which this machine does not have")
    with line.deployed("idle", models.TINY, "Tensor"):
        line.benchmarked("idle")
        log = line.cluster.logs / "audit.log"
        offset = _rest(log, say)
        programs = line.programs()
        pids = [process.pid for found in programs.values() for process in found]
        before = {pid: used for pid in pids if (used := processes.usage(pid))}
        began = time.monotonic()
        time.sleep(QUIET_SECONDS)
        seconds = time.monotonic() - began
        after = {pid: used for pid in pids if (used := processes.usage(pid))}
        memory = _memory_figures(programs, after)
        written = audit.writes(audit.read_from(log, offset)[0])
    return [
        *memory,
        *_usage_figures(programs, processes.idle_share(before, after, seconds), after, seconds),
        _writes(written, seconds, say),
    ]


def _rest(log: Path, say: Say) -> int:
    """Waits until SETTLE_SECONDS have passed without a write; returns the end of the audit log."""
    offset, since, limit = 0, time.monotonic(), time.monotonic() + REST_SECONDS
    last: Counter[str] = Counter()
    while time.monotonic() - since < SETTLE_SECONDS:
        events, offset = audit.read_from(log, offset)
        found = audit.writes(events)
        if found:
            since, last = time.monotonic(), found
        if time.monotonic() > limit:
            say(f"not quiet within {REST_SECONDS:.0f} s; last written: {', '.join(last)}")
            break
        time.sleep(1)
    return offset


def _memory_figures(programs: dict[str, list[processes.Process]], after: dict[int, processes.Usage]) -> list[Figure]:
    """What a Mac's kubelet and agent take together, the largest of each; counted in three ways, from the worst on."""

    def largest(name: str) -> int:
        found = [process.pid for process in programs.get(name, []) if process.pid in after]
        if not found:
            raise BenchFailed(f"no {name} runs")
        return max(found, key=lambda pid: after[pid].rss)

    pair = [largest("kubelet"), largest("agent")]
    union = processes.together(pair)
    if union is None:
        raise BenchFailed("the kubelet or the agent has ended")
    used = [after[pid] for pid in pair]
    bound = Bound("<=", MAC_MEGABYTES)
    parts = " + ".join(f"{one.rss / 1e6:.0f}" for one in used)
    return [
        Figure(
            "agent+kubelet memory",
            "MB",
            (sum(one.rss for one in used) / 1e6,),
            bound=bound,
            note=f"RSS of the largest of each ({parts}): files that both map count twice",
        ),
        Figure(
            "agent+kubelet on a Mac",
            "MB",
            (union / 1e6,),
            bound=bound,
            note="of the same two: each page of a file once, as if no other program mapped it",
        ),
        Figure(
            "agent+kubelet private",
            "MB",
            (sum(one.private for one in used) / 1e6,),
            bound=bound,
            note="of the same two: without files, as the memory column of Activity Monitor counts",
        ),
    ]


def _usage_figures(
    programs: dict[str, list[processes.Process]], shares: dict[int, float], after: dict[int, processes.Usage], seconds: float
) -> list[Figure]:
    def memory(name: str) -> tuple[list[float], list[float], list[float]]:
        found = [p.pid for p in programs.get(name, []) if p.pid in after and p.pid in shares]
        if not found:
            raise BenchFailed(f"no {name} runs")
        pids = sorted(found)
        return [after[p].rss / 1e6 for p in pids], [after[p].pss / 1e6 for p in pids], [shares[p] for p in pids]

    over = f"over {seconds:.0f} s"
    share = max(memory("kubelet")[2]) + max(memory("agent")[2])
    note = f"the busiest of each, {over}"
    figures = [Figure("agent+kubelet idle", "% of a core", (share,), bound=Bound("<=", 1), note=note)]
    for name, most in (("supervisor", 0.5), ("rank", 1.0)):
        share = max(memory(name)[2])
        figures.append(Figure(f"{name} idle", "% of a core", (share,), bound=Bound("<=", most), note=f"the busiest, {over}"))
    for name in ("kubelet", "agent", "shim", "supervisor", "rank", "operator", "local cluster"):
        resident, proportional, cpu = memory(name)
        note = f"{len(resident)} of them; PSS {statistics.median(proportional):.0f} MB; {max(cpu):.2f} % of a core at most"
        bound = Bound("<=", SUPERVISOR_MEGABYTES) if name == "supervisor" else None
        figures.append(Figure(f"{name} memory", "MB", tuple(resident), bound=bound, note=note))
    return figures


def _writes(written: Counter[str], seconds: float, say: Say) -> Figure:
    for what, count in written.most_common(20):
        say(f"written in a quiet minute: {count} × {what}")
    who = Counter[str]()
    for what, count in written.items():
        who[what.split()[0].rpartition(":")[2]] += count
    note = ", ".join(f"{name} {count}" for name, count in who.most_common(5)) or f"over {seconds:.0f} s"
    return Figure("API writes", "a minute", (sum(written.values()) * 60 / seconds,), bound=Bound("<=", 0), note=note)


def masking(line: Line, repeats: int, say: Say) -> list[Figure]:
    """Forced formats alone, which need no cluster."""
    return masks.figures(say)


def copying(line: Line, repeats: int, say: Say) -> list[Figure]:
    """Weights from the hub and from Mac to Mac, in namespaces of their own."""
    try:
        return [*copies.figures(repeats, say), *weights.figures(repeats, say)]
    except copies.NotMeasured as error:
        raise BenchFailed(str(error)) from error


def pulling(line: Line, repeats: int, say: Say) -> list[Figure]:
    """Images of a registry, in namespaces of their own."""
    try:
        return images.figures(repeats, say)
    except copies.NotMeasured as error:
        raise BenchFailed(str(error)) from error


def placing(line: Line, repeats: int, say: Say) -> list[Figure]:
    """The planner alone, which needs no cluster."""
    try:
        return [*placement.figures(repeats, say), *memory.figures()]
    except ImportError as error:
        raise BenchFailed(f"the other side cannot be run: {error}; make install") from error


def counting(line: Line, repeats: int, say: Say) -> list[Figure]:
    """The metrics of a request, which need no cluster."""
    try:
        return metering.figures(say)
    except (ValueError, OSError) as error:
        raise BenchFailed(f"a request failed: {error}") from error


def podding(line: Line, repeats: int, say: Say) -> list[Figure]:
    """One kubelet's pods, which need no cluster."""
    try:
        return kubelet.figures(repeats, say)
    except kubelet.PodsFailed as error:
        raise BenchFailed(str(error)) from error


ALONE = (
    Alone("scale", "one operator of 1,000 and of 5,000 Macs: start, memory, changes, quiet, 200 groups at once", scaling),
    Alone("commands", "`status`, `topology` and `why` of 1,000 Macs, 3,000 cables and 200 ModelDeployments", showing),
)
ALL = (
    Benchmark("up", "seconds of `thunderfleet local up`", up),
    Benchmark("sizes", "chart, objects and CRDs, against the limits of Kubernetes", sizes.run),
    Benchmark("first-token", "apply to the first token, against mlx.launch", first_token),
    Benchmark("decode", "tokens per second through the endpoint, against mlx_lm.server on two ranks", decode),
    Benchmark(
        "serving", "1, 4 and 16 clients at once through the gateway, against mlx_lm.server on two ranks", serving.serving
    ),
    Benchmark("recovery", "a rank's death to Ready, against a fresh start", recovery),
    Benchmark("cables", "a pulled cable: named, served elsewhere, back; a frozen supervisor to Ready", cables.cables),
    Benchmark("formation", "groups that form with a late rank, and come back from a death, without a cluster", formation.run),
    Benchmark("proofs", "what checks add before the first token; false alarms in 200 starts; corruptions caught", proofs.run),
    Benchmark("pods", "one kubelet's pods: start, 100 at once, what 50 cost, logs; without a cluster", podding),
    Benchmark("kubelet", "what a kubelet costs with 50 pods; port-forward: first byte and bytes a second", macpods.figures),
    Benchmark("idle", "memory, processor time and API writes of an idle fleet", idle),
    Benchmark(
        "masks", "what a forced format costs on a rank, over 150,000 tokens", lambda line, repeats, say: masks.figures(say)
    ),
    Benchmark("dialects", "a second turn with 30 tools from the cache; Anthropic's messages against chats", dialects.run),
    Benchmark("speculation", "drafts of a small model against decoding one token at a time", speculation.run),
    Benchmark(
        "routing",
        "what the router adds, two groups against one, a group killed under requests, waking; balancing of conversations",
        lambda line, repeats, say: [*waking.figures(line, repeats, say), *routing.figures(say)],
    ),
    Benchmark(
        "page",
        "the live page of 1,000 Macs: size, first picture, 50 changes a second, a cable that turns red",
        lambda line, repeats, say: page.figures(say),
    ),
    Benchmark("placement", "the planner on fleets that grow, against listing all cycles", placing),
    Benchmark(
        "scrape",
        "a scrape of the operator: seconds and series on a large fleet",
        lambda line, repeats, say: scrape.figures(repeats, say),
    ),
    Benchmark("metering", "what the metrics of a request cost at the gateway and at the router", counting),
    Benchmark(
        "discovery",
        "a pulled cable to its condition; the load of agents on the API server, their Mac, the operator",
        discovery.discovery,
    ),
    Benchmark("measure", "probes against loops and iperf3 by hand; what measuring costs a Mac a day", measure.measure),
    Benchmark(
        "install",
        "Macs from nothing: init, join, all Macs booted until a group serves, and an upgrade while it does",
        installing.installing,
    ),
    Benchmark(
        "copies",
        "models from the hub and from Mac to Mac: against hf download and iperf3, chain, memory, many files, ranks beside one",
        copying,
    ),
    Benchmark("images", "an image of 1 GB from a registry against curl of its layers, and a second pull", pulling),
    Benchmark("measure-serving", "a served group with the prober on against off", measure.serving),
)
