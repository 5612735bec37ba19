"""What the group does for a client, measured through the path that clients use; a client always comes first.

Every prompt begins with fresh random token ids, since a prompt that was seen before is cached and its prefill fiction. The
requests neither use nor feed the prompt cache; a run that had cached tokens all the same is thrown away. A real request ends
a running benchmark within a step or two, and it is tried again when the group is idle.
"""

import asyncio
import contextlib
import logging
import random
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime

from thunderfleet_crds.group import BenchmarkReport, GroupState
from thunderfleet_crds.plan import BenchmarkPlan

from thunderfleet_runner import protocol
from thunderfleet_runner.api.service import GenerationFailed, Refused, Service, Unavailable

log = logging.getLogger(__name__)

IDLE_SECONDS = 5.0
"""How long no client may have come before a benchmark is tried again."""
AGAIN_SECONDS = 300.0
"""After a benchmark that did not come to its end though the group goes on."""
HEARD_SECONDS = 2.5 * protocol.HEARTBEAT_SECONDS
"""After which every rank has said how much memory it has used at most."""
LIMIT_SECONDS = 900.0
"""How long one try may take."""
LEAST_TOKENS = 8
LEAST_SECONDS = 0.001
"""After the first token; with less, the time between two tokens is the event loop's and not the model's."""
TRIES = 5
"""Tries that may be thrown away because tokens were cached."""


class Interrupted(Exception):
    """A real request came."""


class Unusable(RuntimeError):
    """What was measured says nothing."""


@dataclass(frozen=True)
class Run:
    """One request's times, in seconds since it was submitted, and its Done."""

    first: float
    last: float
    done: protocol.Done


def prompt(tokens: int, vocabulary: int, source: random.Random) -> tuple[int, ...]:
    """Random token ids: a new prompt every time."""
    return tuple(source.randrange(max(vocabulary, 1)) for _ in range(max(tokens, 1)))


def sizes(plan: BenchmarkPlan, context_tokens: int) -> tuple[int, int]:
    """Tokens of prompt and answer, cut to what the context holds."""
    generation = max(2, min(plan.generation_tokens, context_tokens // 2))
    return max(1, min(plan.prompt_tokens, context_tokens - generation)), generation


def report(run: Run, prompt_tokens: int, measured_at: datetime) -> BenchmarkReport:
    """The figures of one run, without a decode rate when the answer is too short to have one. Raises Unusable for cached
    tokens or an answer that is none.
    """
    done = run.done
    if done.cached_tokens:
        raise Unusable(f"{done.cached_tokens} of {done.prompt_tokens} prompt tokens came from the cache")
    if done.generated_tokens < 1 or run.first <= 0:
        raise Unusable(f"the answer had {done.generated_tokens} tokens: no rate can be said")
    following, seconds = done.generated_tokens - 1, run.last - run.first
    return BenchmarkReport(
        prefill_tokens_per_second=prompt_tokens / run.first,
        decode_tokens_per_second=following / seconds if following >= LEAST_TOKENS and seconds >= LEAST_SECONDS else None,
        time_to_first_token_microseconds=round(run.first * 1e6),
        prompt_tokens=prompt_tokens,
        generation_tokens=done.generated_tokens,
        peak_memory_bytes=(done.peak_memory_bytes,) if done.peak_memory_bytes else (),
        measured_at=measured_at,
        ran=f"one request, {prompt_tokens} random prompt tokens and {done.generated_tokens} generated greedily, "
        "after one to warm up",
    )


def due_seconds(last: BenchmarkReport | None, plan: BenchmarkPlan, now: datetime) -> float | None:
    """How long until the next benchmark is due; None: never again."""
    if last is None:
        return 0.0
    if plan.every_seconds == 0:
        return None
    return max(0.0, plan.every_seconds - (now - last.measured_at).total_seconds())


async def keep(service: Service, plan: BenchmarkPlan) -> None:
    """Benchmarks whenever one is due, into ``service.benchmark``. Returns when none will be, or when the group goes."""
    while (due := due_seconds(service.benchmark, plan, datetime.now(UTC))) is not None:
        await asyncio.sleep(due)
        try:
            service.benchmark = await run(service, plan)
        except Unavailable as error:
            log.info("the benchmark waits for the group: %s", error)
            return
        except (Unusable, Refused, GenerationFailed, TimeoutError) as error:
            # A figure that could not be taken must not take the group with it.
            why = str(error) or f"it took longer than {LIMIT_SECONDS:g} s"
            log.warning("no benchmark: %s; again in %g s", why, AGAIN_SECONDS)
            await asyncio.sleep(AGAIN_SECONDS)


async def run(service: Service, plan: BenchmarkPlan) -> BenchmarkReport:
    """Measures when no client is served. Raises Unavailable when the group goes, Unusable when nothing could be measured."""
    thrown = 0
    while True:
        await _idle(service)
        try:
            async with asyncio.timeout(LIMIT_SECONDS):
                return await _measure(service, plan)
        except Interrupted:
            log.info("a request came during the benchmark; it is tried again when the group is idle")
        except Unusable as error:
            thrown += 1
            if thrown >= TRIES:
                raise
            log.info("a benchmark was thrown away: %s", error)


async def _idle(service: Service) -> None:
    """Until no client's request runs; not at once after one has come."""
    while service.running or service.arrival.is_set():
        service.arrival.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(IDLE_SECONDS):
                await service.arrival.wait()


async def _measure(service: Service, plan: BenchmarkPlan) -> BenchmarkReport:
    source = random.Random(uuid.uuid4().int)
    prompt_tokens, generation = sizes(plan, service.memory.context_tokens)
    vocabulary = service.vocabulary.size
    # The first prompt of a shape pays for compiling it.
    await _undisturbed(service, _request(prompt(prompt_tokens, vocabulary, source), 2))
    measured = await _undisturbed(service, _request(prompt(prompt_tokens, vocabulary, source), generation))
    found = report(measured, prompt_tokens, datetime.now(UTC))
    if service.plan.world_size == 1:
        return found
    together = await service.measure_all_reduce()
    await asyncio.sleep(HEARD_SECONDS)
    found = with_peaks(found, service.state)
    return found if together is None else with_all_reduce(found, together)


def with_peaks(found: BenchmarkReport, state: GroupState) -> BenchmarkReport:
    """The report with every rank's peak; as it is while one of them has not said its own."""
    peaks = tuple(entry.peak_memory_bytes for entry in state.ranks)
    return found.model_copy(update={"peak_memory_bytes": peaks}) if peaks and all(peaks) else found


def with_all_reduce(found: BenchmarkReport, together: protocol.Measured) -> BenchmarkReport:
    """The report with the all-reduce's figures."""
    return found.model_copy(
        update={
            "all_reduce_microseconds": together.latency_microseconds,
            "all_reduce_megabytes_per_second": together.megabytes_per_second,
            "ran": f"{found.ran}; all-reduces of 4 KiB (latency) and 4 MiB (bandwidth: bytes of the array by time)",
        }
    )


def _request(tokens: tuple[int, ...], generation: int) -> protocol.Request:
    return protocol.Request(
        id=f"benchmark-{uuid.uuid4().hex}", kind="tokens", tokens=tokens, max_tokens=generation, cache=False, no_end=True
    )


async def _undisturbed(service: Service, request: protocol.Request) -> Run:
    """One request, given up as soon as a client comes. Raises Interrupted."""
    running = asyncio.create_task(_one(service, request))
    arrival = asyncio.create_task(service.arrival.wait())
    try:
        await asyncio.wait({running, arrival}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            raise Interrupted
        return running.result()
    finally:
        for task in (running, arrival):
            task.cancel()
        await asyncio.gather(running, arrival, return_exceptions=True)


async def _one(service: Service, request: protocol.Request) -> Run:
    begun = time.monotonic()
    first = last = 0.0
    async with contextlib.aclosing(service.submit(request)) as events:  # type: ignore[type-var]
        async for event in events:
            now = time.monotonic() - begun
            if isinstance(event, protocol.Done):
                return Run(first=first, last=last, done=event)
            last = now
            first = first or now
    raise Unusable("the answer ended without an end")
