"""Planning in a process: real processes that answer, hang, grow, die and are orphaned, and who waits for whom."""

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thunderfleet_operator.placement import (
    Answer,
    Fleet,
    Mac,
    ModelFacts,
    Placement,
    Question,
    Request,
    TensorFacts,
    Unplaceable,
    WhatIsBetter,
    WherePlaced,
    confirm,
    plan,
)
from thunderfleet_operator.placement.questions import answer
from thunderfleet_operator.planning import process as processes
from thunderfleet_operator.planning import wire
from thunderfleet_operator.planning.answers import LASTING_SECONDS, KnownAnswers
from thunderfleet_operator.planning.planner import ADVICE_DUTY, DUTY, RETRY, Planner, _Client
from thunderfleet_operator.planning.process import PlanningFailed, PlanningProcess

from tests.bench.planner.placement import cliques, large_model, racks
from tests.support.generated import examples
from tests.support.processes import alive
from tests.support.waiting import until_async

GIB = 2**30
TINY = ModelFacts("/m", "org/m", bytes=8 * GIB, tensor=(TensorFacts(1, (8 * GIB,)),), layer_bytes=(GIB,) * 8)
REQUEST = Request(repository="org/m")
SLEEPS = ("-c", "import time; time.sleep(600)")
"""A program that answers nothing."""


@cache
def fleet(*free: int) -> Fleet:
    return Fleet(Mac(f"mac-{i}", f"10.0.0.{i}", gib * GIB, gib * GIB, models=(TINY,)) for i, gib in enumerate(free))


def where(*free: int, **more: Any) -> WherePlaced:
    return WherePlaced(fleet(*free), (replace(REQUEST, **more),))


# --- the process ---


@pytest.fixture
async def process() -> AsyncIterator[PlanningProcess]:
    made = PlanningProcess(seconds=60)
    yield made
    await made.end()
    assert made.pid is None


async def test_a_process_answers_as_the_planner_does_on_every_fleet_in_turn(process: PlanningProcess) -> None:
    model = large_model(70 * GIB)
    rack = racks(48, model)
    asked = Request(repository="org/large")
    busy = rack.changed([replace(mac, free_bytes=GIB) for mac in list(rack.macs.values())[:40]])
    fewer = busy.changed(gone=[*list(busy.macs)[:8], *list(busy.cables)[:40]])
    tight = cliques(20, 4, 5 * GIB, large_model(30 * GIB))
    questions: list[Question] = [WherePlaced(each, (asked,)) for each in (rack, busy, fewer, tight, rack)]
    questions.append(WherePlaced(rack, (replace(asked, min_nodes=99), asked)))
    current = tuple(list(rack.macs)[:2])
    questions.append(WhatIsBetter(rack, replace(asked, current=current, min_nodes=2), None))
    pids = set()
    for question in questions:
        found, seconds = await process.ask(question)
        assert found == answer(question) and seconds >= 0
        pids.add(process.pid)
    assert len(pids) == 1, "one process for all of them"


async def test_a_process_that_hangs_is_killed_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    process = PlanningProcess(seconds=30)
    await process.ask(where(64))
    first = process.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    monkeypatch.setattr(process, "_seconds", 0.2)
    with pytest.raises(PlanningFailed, match=r"did not answer within 0.2 s"):
        await process.ask(where(64, 64))
    assert process.pid is None and not alive(first)
    monkeypatch.setattr(process, "_seconds", 30)
    found, _ = await process.ask(where(64))
    assert isinstance(found, Placement) and process.pid != first
    await process.end()


async def test_a_process_that_dies_is_replaced(process: PlanningProcess) -> None:
    await process.ask(where(64))
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    with contextlib.suppress(PlanningFailed):
        await process.ask(where(64))
    found, _ = await process.ask(where(64))
    assert isinstance(found, Placement)


async def test_a_program_that_answers_nonsense_is_an_error() -> None:
    for program in ("print('x' * 4000)", "pass", "import sys; sys.stdout.buffer.write(bytes(8)); sys.stdout.flush()"):
        process = PlanningProcess(30, ("-c", program))
        with pytest.raises(PlanningFailed):
            await process.ask(where(64))
        assert process.pid is None


def changed_child(folder: Path, changes: str) -> PlanningProcess:
    """A planning process whose program is changed first."""
    script = folder / "child.py"
    script.write_text(f"from thunderfleet_operator.planning import child\n{changes}\nchild.main()\n")
    return PlanningProcess(60, (str(script),))


async def test_a_process_ends_at_its_limit_of_memory(tmp_path: Path) -> None:
    process = changed_child(tmp_path, "child.MAX_BYTES = 600 * 2**20\nchild.answer = lambda question, known: bytearray(2**31)")
    with pytest.raises(PlanningFailed, match="of memory"):
        await process.ask(where(64))
    assert process.pid is None


async def test_an_error_of_the_planner_is_told(tmp_path: Path) -> None:
    fails = (
        "def answer(question, known):\n"
        "    print('not an answer')\n"
        "    raise AssertionError('the search chose a Mac without room')\n"
        "child.answer = answer"
    )
    process = changed_child(tmp_path, fails)
    with pytest.raises(PlanningFailed, match="AssertionError: the search chose a Mac without room"):
        await process.ask(where(64))


PARENT = """
import asyncio, sys
from thunderfleet_operator.placement import Fleet, Request, WherePlaced
from thunderfleet_operator.planning.process import PlanningProcess

async def main():
    process = PlanningProcess(600)
    await process.ask(WherePlaced(Fleet(), (Request(repository="org/m"),)))
    print(process.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("frozen", [False, True])
async def test_no_process_outlives_an_operator_that_was_killed(frozen: bool) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    assert parent.stdout is not None
    pid = int(await asyncio.wait_for(parent.stdout.readline(), 60))
    assert alive(pid)
    if frozen:
        os.kill(pid, signal.SIGSTOP)
    parent.kill()
    await parent.wait()
    await until_async(lambda: not alive(pid), "the planning process has ended")


async def test_cancelling_a_question_leaves_no_process() -> None:
    process = PlanningProcess(600, SLEEPS)
    asking = asyncio.create_task(process.ask(where(64)))
    await until_async(lambda: process.pid is not None)
    pid = process.pid
    assert pid is not None
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert not alive(pid)


def test_messages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_BYTES", 100)
    with pytest.raises(ValueError, match="larger than 100"):
        wire.encode("x" * 200)
    with pytest.raises(ValueError, match="larger than 100"):
        wire.size_of(wire.LENGTH.pack(101))


def test_a_fleet_is_sent_in_parts_and_then_what_changed() -> None:
    rack = racks(processes.CHUNK + 1, TINY)
    parts = list(processes._parts(rack.difference(Fleet())))
    assert all(len(part.macs) <= processes.CHUNK and len(part.cables) <= processes.CHUNK for part in parts)
    one = rack.changed([replace(rack.macs["mac-00003"], free_bytes=1)])
    (part,) = processes._parts(one.difference(rack))
    assert [mac.name for mac in part.macs] == ["mac-00003"] and not part.cables


# --- answers that still hold ---


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(1, 64), min_size=1, max_size=4), st.lists(st.integers(1, 64), min_size=1, max_size=4))
def test_an_answer_on_an_older_fleet_is_used_only_if_it_can_be_carried_out(before: list[int], now: list[int]) -> None:
    known, old, new = KnownAnswers(lambda: 0.0), where(*before), where(*now)
    known.put(0, old, answer(old))
    found = known.where(0, new)
    if isinstance(found, Placement):
        assert plan(new.fleet, replace(REQUEST, current=found.nodes)) is not None
        assert all(new.fleet.macs[rank.node].free_bytes >= rank.memory_bytes for rank in found.ranks)
        assert confirm(new.fleet, REQUEST, found) == found
    if isinstance(found, Unplaceable):
        assert before == now
    assert known.where(0, old) == answer(old)


def test_an_old_placement_is_planned_again() -> None:
    now = [0.0]
    known = KnownAnswers(lambda: now[0])
    known.put(0, where(64), answer(where(64)))
    assert known.where(0, where(64, 64)) is not None
    now[0] = LASTING_SECONDS
    assert known.where(0, where(64, 64)) is None and known.where(0, where(64)) is not None
    assert known.where(0, where(64, split="Pipeline")) is None, "something else is wanted"


def test_groups_that_cannot_be_placed_share_an_answer_and_a_failed_one_is_asked_again() -> None:
    known = KnownAnswers(lambda: 0.0)
    known.put(0, where(4), answer(where(4)))
    assert known.where(1, where(4)) == known.where(0, where(4)) == answer(where(4))
    assert known.where(0, where(5)) is None and known.where_before(0, where(5)) == answer(where(4))
    known.put(0, where(4), answer(where(4)), final=False)
    assert known.where(0, where(4)) is None and known.where_before(0, where(4)) is not None
    known.keep(set())
    assert known.where_before(0, where(4)) is None


# --- who waits for whom ---


class Script:
    """A process that a test answers for: each question waits until it is let go."""

    def __init__(self) -> None:
        self.asked: list[Question] = []
        self.ended = 0
        self._next: asyncio.Queue[tuple[Answer | PlanningFailed, float]] = asyncio.Queue()

    async def ask(self, question: Question) -> tuple[Answer, float]:
        self.asked.append(question)
        found, seconds = await self._next.get()
        if isinstance(found, PlanningFailed):
            raise found
        return found, seconds

    async def end(self) -> None:
        self.ended += 1

    def says(self, found: Answer | PlanningFailed, seconds: float = 0.0) -> None:
        self._next.put_nowait((found, seconds))


class Run:
    """A planner that runs, with a clock of its own."""

    def __init__(self) -> None:
        self.script, self.now, self.changed = Script(), 0.0, list[str]()
        self.planner = Planner(self.script, self.changed.append, lambda: self.now)
        self.task = asyncio.create_task(self.planner.run())

    async def wants(self, key: str, question: Question | None) -> None:
        asking = asyncio.create_task(self.planner.ask(key, {0: question} if question is not None else {}))
        await asyncio.sleep(0)
        self.now += 0.2
        self.planner._answered.set()
        await asking

    def has_been_asked(self, question: Question, count: int) -> bool:
        return self.script.asked.count(question) == count

    def has_changed(self, key: str, count: int) -> bool:
        return self.changed.count(key) == count

    async def asked(self, count: int) -> Question:
        await until_async(lambda: len(self.script.asked) == count, f"{count} questions")
        return self.script.asked[-1]


@pytest.fixture
async def run() -> AsyncIterator[Run]:
    made = Run()
    yield made
    made.task.cancel()
    await asyncio.gather(made.task, return_exceptions=True)
    assert made.script.ended


NO = Unplaceable("NoRoom", "no room")  # type: ignore[arg-type]


async def test_a_hard_question_is_asked_rarely_and_after_easy_ones(run: Run) -> None:
    await run.wants("hard", where(1))
    await run.asked(1)
    run.script.says(NO, 5.0)
    await until_async(lambda: run.changed == ["hard"])
    # The fleet changes all the time; the question is the same.
    await run.wants("hard", where(2))
    run.now += DUTY * 5.0 - 1.0
    await run.wants("easy", where(3))
    assert await run.asked(2) == where(3)
    await run.wants("other", where(4))
    run.now += 5.0
    await run.wants("late", where(5))
    for expected in (where(4), where(2), where(5)):
        run.script.says(NO, 0.01)
        await until_async(partial(run.has_been_asked, expected, 1))
    assert run.script.asked == [where(1), where(3), where(4), where(2), where(5)], "the hard one is due, but comes later"
    run.script.says(NO)


async def test_namespaces_take_turns_at_the_planner(run: Run) -> None:
    await run.wants("crowd/m0", where(1))
    await run.asked(1)
    for number in range(1, 20):
        await run.wants(f"crowd/m{number}", where(1 + number))
    for key, number in (("a/md", 50), ("b/md", 51), ("a/other", 52)):
        await run.wants(key, where(number))
    for count, expected in enumerate((50, 51, 2, 52, 3, 4), start=2):
        run.script.says(NO)
        assert await run.asked(count) == where(expected)
    for number in range(20):
        run.planner.forget(f"crowd/m{number}")
    assert "crowd" not in run.planner._served
    run.script.says(NO)


QUESTIONS: tuple[Question, ...] = (where(1), where(1, min_nodes=2), where(2), WhatIsBetter(fleet(1), REQUEST, None))
ANSWERS: tuple[Answer | PlanningFailed, ...] = (NO, "better", PlanningFailed("failed"))
KEYS = ("a/1", "a/2", "a/3", "b/1", "b/2", "c/1", "alone")


async def asks(planner: Planner, key: str, questions: dict[int, Question]) -> None:
    """Asks, and does not wait for an answer."""
    asking = asyncio.create_task(planner.ask(key, questions))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


def expected(planner: Planner, now: float) -> tuple[str | None, float | None]:
    """The rule in full: of those that are due, places first, then the namespace that waits longest, then the question."""
    waiting = {key: client for key, client in planner._clients.items() if client.waiting}
    due = {key: planner._due(client) for key, client in waiting.items()}

    def order(key: str) -> tuple[bool, int, float]:
        client = waiting[key]
        advice = not isinstance(client.first[1], WherePlaced)
        return advice, planner._served.get(key.rpartition("/")[0], 0), client.since + DUTY * client.cost

    ready = [key for key in waiting if due[key] <= now]
    return (min(ready, key=order), None) if ready else (None, min((at - now for at in due.values()), default=None))


async def check_the_rule(dice: random.Random) -> None:
    script, now = Script(), 0.0
    planner = Planner(script, lambda key: None, lambda: now)
    for _ in range(150):
        move = dice.choices(("ask", "answer", "forget", "pass"), (12, 8, 1, 1))[0]
        if move == "ask":
            questions = {group: dice.choice(QUESTIONS) for group in dice.sample(range(3), dice.randint(0, 2))}
            await asks(planner, dice.choice(KEYS), questions)
        elif move == "answer" and (key := planner._next()[0]) is not None:
            script.says(dice.choice(ANSWERS), dice.choice([0.0, 0.1, 2.0]))
            await planner._answer(key)
        elif move == "forget":
            planner.forget(dice.choice(KEYS))
        elif move == "pass":
            now += 40 * dice.random()
        assert planner._next() == expected(planner, now)
        assert planner._served.keys() <= {key.rpartition("/")[0] for key in planner._clients}


async def test_the_next_question_is_that_of_the_whole_rule() -> None:
    for seed in range(60):
        await check_the_rule(random.Random(seed))


async def test_an_answer_does_not_read_all_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    due = vars(_Client)["due"].fget

    def counted(client: _Client) -> float:
        nonlocal looks
        looks += 1
        return float(due(client))

    monkeypatch.setattr(_Client, "due", property(counted))
    script, now = Script(), 0.0
    planner = Planner(script, lambda key: None, lambda: now)
    for number in range(600):
        await asks(planner, f"ns{number % 20}/m{number}", {0: where(number)})
    looks = 0
    for number in range(600):
        key, _ = planner._next()
        assert key is not None and key == f"ns{number % 20}/m{number}"
        script.says(NO)
        await planner._answer(key)
        planner.forget(key)
    assert looks < 600 * 10
    assert planner._next() == (None, None) and not planner._served


async def test_a_question_without_an_answer_is_asked_again_with_back_off(run: Run) -> None:
    await run.wants("md", where(1))
    for count, wait in enumerate((RETRY.first, 2 * RETRY.first, 4 * RETRY.first), start=1):
        await until_async(partial(run.has_been_asked, where(1), count))
        run.script.says(PlanningFailed("did not answer within 15 s"))
        await until_async(partial(run.has_changed, "md", count))
        found = run.planner.answers("md").where_before(0, where(1))
        assert found is not None and found.reason == "PlanningFailed"
        assert found.message == "the planner did not answer within 15 s"
        await run.wants("md", where(1))
        run.now += wait - 1
        await run.wants("other", where(9 + count))
        await until_async(partial(run.has_been_asked, where(9 + count), 1))
        run.script.says(NO)
        await until_async(partial(run.has_changed, "other", count))
        run.now += 1
        await run.wants("md", where(1))
    await until_async(partial(run.has_been_asked, where(1), 4))
    run.script.says(NO)


async def test_another_spec_is_asked_at_once(run: Run) -> None:
    await run.wants("md", where(1))
    await run.asked(1)
    run.script.says(NO, 100.0)
    await until_async(lambda: run.changed == ["md"])
    await run.wants("md", where(1, min_nodes=2))
    await run.asked(2)
    run.script.says(NO)


async def test_a_place_comes_before_advice_and_what_is_gone_is_not_answered(run: Run) -> None:
    await run.wants("first", where(1))
    await run.asked(1)
    await run.wants("advice", WhatIsBetter(fleet(1), REQUEST, None))
    await run.wants("gone", where(2))
    await run.wants("withdrawn", where(3))
    await run.wants("place", where(4))
    run.planner.forget("gone")
    await run.wants("withdrawn", None)
    run.script.says(NO)
    assert await run.asked(2) == where(4)
    run.script.says(NO)
    assert isinstance(await run.asked(3), WhatIsBetter)
    run.script.says("mac-9; currently slower")
    await until_async(lambda: run.changed == ["first", "place", "advice"])
    assert run.planner.take_better("advice") == {0: "mac-9; currently slower"} and run.planner.take_better("advice") == {}


async def test_advice_leaves_most_of_the_time_to_other_questions(run: Run) -> None:
    await run.wants("one", WhatIsBetter(fleet(1), REQUEST, None))
    await run.asked(1)
    run.script.says(None, 2.0)
    await until_async(lambda: run.changed == ["one"])
    await run.wants("two", WhatIsBetter(fleet(2), REQUEST, None))
    await run.wants("place", where(3))
    assert await run.asked(2) == where(3), "at once"
    run.now += ADVICE_DUTY * 2.0 - 1.0
    run.script.says(NO)
    await until_async(lambda: run.changed == ["one", "place"])
    await run.wants("another", where(4))
    assert await run.asked(3) == where(4), "advice is not due"
    run.now += 1.0
    run.script.says(NO)
    assert isinstance(await run.asked(4), WhatIsBetter)


async def test_a_question_that_is_being_answered_is_not_asked_again(run: Run) -> None:
    await run.wants("md", where(1))
    await run.asked(1)
    await run.wants("md", where(2))
    run.script.says(NO)
    await until_async(lambda: run.changed == ["md"])
    await run.wants("other", where(3))
    assert await run.asked(2) == where(3)
    run.script.says(NO)


async def test_a_planner_that_is_cancelled_together_with_a_question_ends(run: Run) -> None:
    for _ in range(3):
        await asyncio.sleep(0)
    run.planner._wake.set()
    run.task.cancel()
    done, _ = await asyncio.wait({run.task}, timeout=30)
    assert done
