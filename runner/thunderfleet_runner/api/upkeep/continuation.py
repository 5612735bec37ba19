"""Lets the group continue passages, through the path that clients use: see ``passages``.

Lengths that the weights have passed before are checked before the group serves, the others while it is idle. The canary repeats
them.
"""

import asyncio
import contextlib
import logging
import time
import uuid

from thunderfleet_runner import protocol
from thunderfleet_runner.api.passages import SERVED, Question, questions
from thunderfleet_runner.api.service import Service
from thunderfleet_runner.api.upkeep.idle import Interrupted, undisturbed, until_idle

log = logging.getLogger(__name__)

LIMIT_SECONDS = 900.0
"""Time limit for one length while the group is idle."""


class OutputWrong(Exception):
    """The group does not continue a passage of a length that the same weights continued before."""


async def before_serving(service: Service) -> None:
    """Checks the lengths that must be right before the group serves. Raises OutputWrong, and what ``Service.submit`` raises."""
    for length in service.answers.first(service.lengths):
        await _ask(service, length)


async def while_idle(service: Service) -> None:
    """Checks the other lengths while no request runs. Raises OutputWrong, TimeoutError, and what ``Service.submit`` raises."""
    while (length := service.answers.due(service.lengths)) is not None:
        await until_idle(service)
        with contextlib.suppress(Interrupted):
            async with asyncio.timeout(LIMIT_SECONDS):
                await undisturbed(service, _ask(service, length))


async def again(service: Service, length: int) -> None:
    """Checks again a length that was right in this attempt. Raises OutputWrong, and what ``Service.submit`` raises."""
    await _ask(service, length, expected=True, cache=False)


async def once(service: Service, length: int, number: int) -> None:
    """Lets the group continue a passage of such a length, another one for the next ``number``. Raises what ``again`` raises."""
    asked = questions(length, service.vocabulary.size)
    question = asked[number % len(asked)]
    wrong = question.wrong(await _continued(service, question))
    if wrong is not None:
        _refuse(service, length, wrong)


async def _ask(service: Service, length: int, *, expected: bool = False, cache: bool = True) -> None:
    began = time.monotonic()
    wrong = await _wrong(service, length, cache=cache)
    seconds = time.monotonic() - began
    if wrong is None:
        log.info("the group has continued passages of %d tokens correctly, in %.2f s", length, seconds)
        service.answers = service.answers.right(length)
        return
    log.warning("%s (%.2f s)", wrong, seconds)
    if expected or length in service.answers.before:
        _refuse(service, length, wrong)
    service.answers = service.answers.wrong(length, wrong)


def _refuse(service: Service, length: int, wrong: str) -> None:
    """Raises OutputWrong."""
    service.answers = service.answers.unlike(length)
    raise OutputWrong(wrong)


async def _wrong(service: Service, length: int, *, cache: bool) -> str | None:
    """What is wrong with the answers about a passage of this length. Without ``cache`` the prompt cache stays as it is."""
    memory = service.memory
    first, second, third = questions(length, service.vocabulary.size)
    # The longest passages would evict clients' sequences from the prompt cache.
    cache = cache and length <= min(SERVED, memory.cached_tokens)
    if memory.concurrent_requests > 1:
        found = list(await asyncio.gather(_continued(service, first, cache=cache), _continued(service, second)))
    else:
        found = [await _continued(service, first, cache=cache), await _continued(service, second)]
    asked = [first, second]
    if cache:
        found.append(await _continued(service, third, cache=True))
        asked.append(third)
    return next((text for one, tokens in zip(asked, found, strict=True) if (text := one.wrong(tokens)) is not None), None)


async def _continued(service: Service, question: Question, *, cache: bool = False) -> tuple[int, ...]:
    request = protocol.Request(
        id=f"passage-{uuid.uuid4().hex}",
        prompt=protocol.Prompt.of(question.passage, question.part, types=("system", "assistant")),
        max_tokens=len(question.answer),
        cache=cache,
        no_end=True,
    )
    async with contextlib.aclosing(service.submit(request, own=True)) as events:  # type: ignore[type-var]
        return tuple([event.token async for event in events if isinstance(event, protocol.Token) and event.token >= 0])
