"""Measures the group's rates through the path that clients use; clients take precedence.

Every prompt has new random token ids, since a known prompt is cached and its prefill rate would be meaningless. The requests
neither read nor fill the prompt cache; a run with cached tokens is discarded. A client's request ends a running benchmark
within a step or two; it is repeated when the group is idle.
"""

import asyncio
import contextlib
import logging
import random
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime

from thunderfleet_crds.exchange.group import BenchmarkReport, GroupState
from thunderfleet_crds.exchange.plan import BenchmarkPlan
from thunderfleet_lib.timestamps import age_seconds

from thunderfleet_runner import protocol
from thunderfleet_runner.api.service import GenerationFailed, Refused, Service, Unavailable
from thunderfleet_runner.api.upkeep.idle import Interrupted, undisturbed, until_idle
from thunderfleet_runner.host.preflight import version

log = logging.getLogger(__name__)

AGAIN_SECONDS = 300.0
"""Pause after a benchmark that failed while the group is still Ready."""
HEARD_SECONDS = 2.5 * protocol.HEARTBEAT_SECONDS
"""After this time every rank has reported its peak memory."""
LIMIT_SECONDS = 900.0
"""Time limit for one run."""
LEAST_TOKENS = 8
LEAST_SECONDS = 0.001
"""Minimum time after the first token; in less, the event loop's delays dominate the time between tokens."""
TRIES = 5
"""Maximum number of discarded runs."""


class Unusable(RuntimeError):
    """The run gives no usable figures."""


@dataclass(frozen=True)
class Run:
    """Times of one request's first and last token, in seconds since it was submitted, and its Done."""

    first: float
    last: float
    done: protocol.Done


def prompt(tokens: int, vocabulary: int, source: random.Random) -> tuple[int, ...]:
    """Random token ids, different in every call."""
    return tuple(source.randrange(max(vocabulary, 1)) for _ in range(max(tokens, 1)))


def sizes(plan: BenchmarkPlan, context_tokens: int) -> tuple[int, int]:
    """Tokens of the prompt and the answer, limited to the context."""
    generation = max(2, min(plan.generation_tokens, context_tokens // 2))
    return max(1, min(plan.prompt_tokens, context_tokens - generation)), generation


def report(run: Run, prompt_tokens: int, measured_at: datetime) -> BenchmarkReport:
    """The figures of one run, without a decode rate when the answer is too short for one.

    Raises Unusable for cached tokens or an empty answer.
    """
    done = run.done
    if done.cached_tokens:
        raise Unusable(f"{done.cached_tokens} of {done.prompt_tokens} prompt tokens came from the cache")
    if done.generated_tokens < 1 or run.first <= 0:
        raise Unusable(f"the response had {done.generated_tokens} tokens, too few to compute a rate")
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
        "after a warm-up request",
        mlx_version=version("mlx") or None,
        mlx_lm_version=version("mlx-lm") or None,
    )


def due_seconds(last: BenchmarkReport | None, plan: BenchmarkPlan, now: datetime) -> float | None:
    """Seconds until the next benchmark; None when there is none."""
    if last is None:
        return 0.0
    if plan.every_seconds == 0:
        return None
    return max(0.0, plan.every_seconds - age_seconds(last.measured_at, now))


async def keep(service: Service, plan: BenchmarkPlan) -> None:
    """Runs benchmarks when they are due, into ``service.benchmark``.

    Returns when no further one is due, or when the group is no longer Ready.
    """
    while (due := due_seconds(service.benchmark, plan, datetime.now(UTC))) is not None:
        await asyncio.sleep(due)
        try:
            service.benchmark = await run(service, plan)
        except Unavailable as error:
            log.info("benchmark postponed: %s", error)
            return
        except (Unusable, Refused, GenerationFailed, TimeoutError) as error:
            # A failed measurement must not affect the group.
            why = str(error) or f"it took longer than {LIMIT_SECONDS:g} s"
            log.warning("benchmark failed: %s; next try in %g s", why, AGAIN_SECONDS)
            await asyncio.sleep(AGAIN_SECONDS)


async def run(service: Service, plan: BenchmarkPlan) -> BenchmarkReport:
    """Measures while no request runs. Raises Unavailable when the group is no longer Ready, Unusable without usable figures."""
    thrown = 0
    while True:
        await until_idle(service)
        try:
            async with asyncio.timeout(LIMIT_SECONDS):
                return await _measure(service, plan)
        except Interrupted:
            log.info("a request interrupted the benchmark; it is repeated when the group is idle")
        except Unusable as error:
            thrown += 1
            if thrown >= TRIES:
                raise
            log.info("benchmark discarded: %s", error)


async def _measure(service: Service, plan: BenchmarkPlan) -> BenchmarkReport:
    source = random.Random(uuid.uuid4().int)
    prompt_tokens, generation = sizes(plan, service.memory.context_tokens)
    vocabulary = service.vocabulary.size
    # The first prompt of a shape includes its compilation.
    await undisturbed(service, _one(service, _request(prompt(prompt_tokens, vocabulary, source), 2)))
    measured = await undisturbed(service, _one(service, _request(prompt(prompt_tokens, vocabulary, source), generation)))
    found = report(measured, prompt_tokens, datetime.now(UTC))
    if service.plan.world_size == 1:
        return found
    together = await service.measure_all_reduce()
    await asyncio.sleep(HEARD_SECONDS)
    found = with_peaks(found, service.state)
    return found if together is None else with_all_reduce(found, together)


def with_peaks(found: BenchmarkReport, state: GroupState) -> BenchmarkReport:
    """The report with the peaks of all ranks; unchanged when one is missing."""
    peaks = tuple(entry.peak_memory_bytes for entry in state.ranks)
    return found.model_copy(update={"peak_memory_bytes": peaks}) if peaks and all(peaks) else found


def with_all_reduce(found: BenchmarkReport, together: protocol.Measured) -> BenchmarkReport:
    """The report with the all-reduce's figures."""
    return found.model_copy(
        update={
            "all_reduce_microseconds": together.latency_microseconds,
            "all_reduce_megabytes_per_second": together.megabytes_per_second,
            "ran": f"{found.ran}; all-reduces of 4 KiB (latency) and 4 MiB (bandwidth: bytes of the array divided by time)",
        }
    )


def _request(tokens: tuple[int, ...], generation: int) -> protocol.Request:
    return protocol.Request(
        id=f"benchmark-{uuid.uuid4().hex}", prompt=protocol.Prompt.of(tokens), max_tokens=generation, cache=False, no_end=True
    )


async def _one(service: Service, request: protocol.Request) -> Run:
    started = time.monotonic()
    first = last = 0.0
    async with contextlib.aclosing(service.submit(request)) as events:  # type: ignore[type-var]
        async for event in events:
            now = time.monotonic() - started
            if isinstance(event, protocol.Done):
                return Run(first=first, last=last, done=event)
            last = now
            first = first or now
    raise Unusable("the response ended unexpectedly")
