"""What an idle group is asked, and when. The model here answers from the questions, without MLX."""

import asyncio
import base64
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from thunderfleet_crds.exchange.group import GroupState
from thunderfleet_crds.vocabulary import GroupPhase, Verify
from thunderfleet_runner import protocol
from thunderfleet_runner.api import passages
from thunderfleet_runner.api.passages import CONTROL, SERVED, Answers
from thunderfleet_runner.api.service import Service, Vocabulary
from thunderfleet_runner.api.upkeep import canary
from thunderfleet_runner.api.upkeep.rechecks import EVERY_SECONDS, SLEPT_SECONDS, Rechecks

from tests.support.waiting import until_async

VOCABULARY = 8000
IDLE_SECONDS = 0.01
ROOM = {"context_tokens": 4096, "concurrent_requests": 2, "cached_tokens": 4096}


class Model:
    """Rank 0 of a model that continues passages; ``asked`` are the lengths of its prompts, -1 for one that was cancelled."""

    def __init__(self, service: Service) -> None:
        self.service, self.asked, self.cached = service, list[int](), list[bool]()
        self.right, self.answers = True, True
        self.known = {
            (*question.passage, *question.part): question.answer
            for length in (CONTROL, SERVED)
            for question in passages.questions(length, VOCABULARY)
        }

    def send(self, message: Any) -> None:
        if isinstance(message, protocol.Cancel):
            self.asked.append(-1)
            self.answers = True
            self.end(message.id, "cancelled")
        if not isinstance(message, protocol.Generate) or not self.answers:
            return
        request = message.request
        ids = array("I")
        ids.frombytes(base64.b64decode(request.prompt.tokens))
        self.asked.append(len(ids))
        self.cached.append(request.cache)
        tokens = self.known.get(tuple(ids), (0,))[: request.max_tokens]
        for token in tokens if self.right else [*tokens[:-1], tokens[-1] + 1]:
            asyncio.get_running_loop().call_soon(self.service.deliver, protocol.Token(id=request.id, token=token, text=""))
        self.end(request.id, "length")

    def end(self, name: str, reason: Any) -> None:
        done = protocol.Done(id=name, finish_reason=reason, prompt_tokens=1, generated_tokens=1)
        asyncio.get_running_loop().call_soon(self.service.deliver, done)

    def announce(self, turn: int) -> None:
        pass

    def measure(self) -> None:
        pass


class Idle:
    """A Ready group without requests, and its canary. ``clocks`` are the monotonic and the wall clock."""

    def __init__(self, service: Service) -> None:
        self.service, self.model = service, Model(service)
        self.clocks, self.wrong = (0.0, 0.0), list[str]()
        service.attach(self.model, Vocabulary(VOCABULARY, True))

    async def until_asked(self, *lengths: int) -> None:
        def asked() -> bool:
            seen = self.model.asked
            return any(tuple(seen[at : at + len(lengths)]) == lengths for at in range(len(seen)))

        await until_async(asked, f"{lengths} are asked", 20, describe=lambda: str(self.model.asked))


@pytest.fixture
def idle(make_group: Callable[..., Any]) -> Callable[..., Any]:
    @asynccontextmanager
    async def make(answers: Answers, verify: Verify = Verify.FULL) -> AsyncIterator[Idle]:
        plan = make_group(1).plan
        memory = plan.memory.model_copy(update=ROOM)
        plan = plan.model_copy(update={"verify": verify, "memory": memory})
        service = Service(plan, 0, lambda: GroupState(uid=plan.uid, index=0, epoch=3, phase=GroupPhase.READY))
        service.answers = answers
        found = Idle(service)
        singing = asyncio.create_task(canary.run(service, found.wrong.append, IDLE_SECONDS, now=lambda: found.clocks))
        try:
            yield found
        finally:
            singing.cancel()

    return make


PASSED = Answers(digest="d").right(CONTROL).right(SERVED)
SHORT, LONG = CONTROL + passages.REPEATED, SERVED + passages.REPEATED


@pytest.mark.parametrize(
    ("answers", "verify"), [(Answers(digest="d"), Verify.FULL), (PASSED, Verify.QUICK), (PASSED, Verify.NONE)]
)
async def test_one_token_where_nothing_is_known_or_asked(idle: Callable[..., Any], answers: Answers, verify: Verify) -> None:
    async with idle(answers, verify) as group:
        await group.until_asked(1, 1)


async def test_a_short_passage_where_it_was_continued(idle: Callable[..., Any]) -> None:
    async with idle(PASSED) as group:
        await group.until_asked(SHORT, SHORT, SHORT, SHORT)
        assert not group.wrong and not any(group.model.cached), "the prompt cache stays as clients have filled it"


@pytest.mark.parametrize("clocks", [(EVERY_SECONDS, EVERY_SECONDS), (1.0, 2.0 + SLEPT_SECONDS)], ids=["hour", "sleep"])
async def test_the_longest_passage_after_an_hour_and_after_a_sleep(
    idle: Callable[..., Any], clocks: tuple[float, float]
) -> None:
    async with idle(PASSED) as group:
        await group.until_asked(SHORT, SHORT)
        group.clocks = clocks
        await group.until_asked(LONG, LONG, SHORT, SHORT)
        assert not group.wrong and not any(group.model.cached)


async def test_the_longest_passage_after_a_cable_was_interrupted(idle: Callable[..., Any]) -> None:
    async with idle(PASSED) as group:
        group.service.connections = "first"
        await group.until_asked(SHORT, SHORT)
        assert LONG not in group.model.asked, "that it is known now is no interruption"
        group.service.connections = "second"
        await group.until_asked(LONG, LONG, SHORT, SHORT)
        for connections in ("", "second"):
            group.service.connections = connections
            group.model.asked.clear()
            await until_async(lambda: len(group.model.asked) > 3, "it asks on")
            assert LONG not in group.model.asked, "an operator that says nothing is no interruption"


async def test_a_wrong_answer_is_reported_and_asked_first_in_the_next_attempt(idle: Callable[..., Any]) -> None:
    async with idle(PASSED) as group:
        await group.until_asked(SHORT)
        group.model.right = False
        await until_async(lambda: group.wrong, "the wrong answer is reported")
        assert group.wrong[0].startswith(
            f"the prompt was a passage of {CONTROL} tokens and then 32 of these tokens again; token 16 of the answer"
        )
        assert group.service.answers.suspect == CONTROL


async def test_a_client_ends_it(idle: Callable[..., Any]) -> None:
    async with idle(PASSED) as group:
        group.model.answers = False
        await until_async(lambda: group.service.running, "it asks")
        group.service.arrival.set()
        await group.until_asked(-1, SHORT)
        assert not group.wrong


def test_a_clock_that_is_set_back_is_no_sleep() -> None:
    begun = Rechecks(0.0, 1000.0)
    assert not begun.at(60.0, 900.0).due
    slept = begun.at(60.0, 1060.0 + SLEPT_SECONDS + 1).at(61.0, 2000.0)
    assert slept.due and not slept.done().due
    assert not slept.done().at(EVERY_SECONDS, 2000.0 + EVERY_SECONDS - 61.0).due
    assert slept.done().at(61.0 + EVERY_SECONDS, 2000.0 + EVERY_SECONDS).due
