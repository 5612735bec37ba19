"""Groups over the recorded JACCL: real supervisors and ranks, the shipped exchange, and every point at which JACCL fails."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.vocabulary import FaultClass, GroupPhase, Split, Verify
from thunderfleet_lib.backoff import Backoff
from thunderfleet_localcluster.fleet.file import parse_fleet
from thunderfleet_localcluster.fleet.layout import plan_layout
from thunderfleet_localcluster.models import tinymodel
from thunderfleet_localcluster.recorded.files import replace_file
from thunderfleet_localcluster.recorded.folder import write_machine
from thunderfleet_localcluster.recorded.jaccl import write_control
from thunderfleet_runner import protocol
from thunderfleet_runner.api.service import Unavailable
from thunderfleet_runner.group import launch
from thunderfleet_runner.group.decide import attempts
from thunderfleet_runner.host.rankprocess import rank_command
from thunderfleet_runner.rank.checks.connections import SIZES

from tests.support.models.prompts import chat_prompt
from tests.support.processes import exists
from tests.support.suite.tiers import quick

SECONDS = 150.0
"""Time limit for imports of real ranks, which take a few seconds on an idle machine."""

BLOCK = 10
"""Cables have addresses in 127.10.0.0/16, of which tests/darwin/loopback.py has those of this fleet. Ports are free ones."""

FLEET = """
machines:
  - {name: studio-0, model: Mac Studio (M3 Ultra), memory: 96 GB, rdma: true, jaccl: recorded}
  - {name: studio-1, model: Mac Studio (M3 Ultra), memory: 96 GB, rdma: true, jaccl: recorded}
  - {name: studio-2, model: Mac Studio (M3 Ultra), memory: 96 GB, rdma: true, jaccl: recorded}
cables:
  - {a: "studio-0:1", b: "studio-1:2"}
  - {a: "studio-1:1", b: "studio-2:2"}
  - {a: "studio-2:1", b: "studio-0:2"}
"""


FOUR = """
machines:
  - {name: studio-0, model: Mac Studio (M3 Ultra), memory: 96 GB, rdma: true, jaccl: recorded}
  - {name: studio-1, model: Mac Studio (M3 Ultra), memory: 96 GB, rdma: true, jaccl: recorded}
  - {name: studio-2, model: Mac Studio (M3 Ultra), memory: 96 GB, rdma: true, jaccl: recorded}
  - {name: studio-3, model: Mac Studio (M3 Ultra), memory: 96 GB, rdma: true, jaccl: recorded}
cables:
  - {a: "studio-0:1", b: "studio-1:2"}
  - {a: "studio-1:1", b: "studio-2:2"}
  - {a: "studio-2:1", b: "studio-3:2"}
  - {a: "studio-3:1", b: "studio-0:2"}
"""

pytestmark = pytest.mark.usefixtures("without_compiler")


class Macs:
    """A group on recorded Macs: rank 0's supervisor here, the others as processes with their Mac's PATH and PYTHONPATH."""

    def __init__(self, group: Any, folder: Path, model: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.group = group
        self.layout = plan_layout(parse_fleet(FOUR if size == 4 else FLEET), "loopback", block=BLOCK)
        self.homes = [folder / machine.name for machine in self.layout.machines]
        for machine, home in zip(self.layout.machines, self.homes, strict=True):
            write_machine(self.layout, machine, home / "bin")
        plan = group.plan.model_dump(mode="json", by_alias=True)
        # The model has two KV heads: three ranks are a pipeline.
        plan |= {"modelPath": str(model), "backend": "jaccl", "split": "Pipeline" if size == 3 else "Tensor"}
        plan["memory"] = {"contextTokens": 512, "concurrentRequests": 4, "cachedTokens": 2048}
        for entry in plan["ranks"]:
            entry |= {"memoryBytes": 64 << 20, "ringAddress": None, "devices": self.devices(entry["rank"], size)}
            if size == 3:
                entry["layers"] = [(2, 4), (1, 2), (0, 1)][entry["rank"]]
        group.plan = Plan.model_validate(plan)
        self.processes: list[asyncio.subprocess.Process] = []
        for name, value in self.environment(0).items():
            monkeypatch.setenv(name, value)

    def devices(self, rank: int, size: int) -> list[str | None]:
        mine = self.layout.machines[rank]
        facing = {end.peer: f"rdma_{end.interface}" for end in mine.ends}
        return [facing.get(self.layout.machines[peer].name) for peer in range(size)]

    def environment(self, rank: int) -> dict[str, str]:
        home = self.homes[rank]
        path = os.environ["PATH"].split(":")
        inherited = [part for part in path if "studio-" not in part]
        return {"PATH": ":".join([str(home / "bin"), *inherited]), "PYTHONPATH": str(home / "python")}

    def fails(self, rank: int, **entry: Any) -> None:
        write_control([entry], self.homes[rank] / "python")

    def works(self, rank: int) -> None:
        write_control([], self.homes[rank] / "python")

    def down(self, rank: int) -> None:
        """As if the other ends of this Mac's cables were unplugged."""
        for file in (self.homes[rank] / "recorded").glob("ibv_devinfo*"):
            replace_file(file, file.read_text().replace("PORT_ACTIVE (4)", "PORT_DOWN (1)"), 0o644)

    async def start(self, *, form_seconds: float = 60.0, **changes: Any) -> Any:
        """Starts all supervisors and returns the leader's."""
        plan = self.group.folder / "plan.json"
        plan.write_text(self.group.plan.model_dump_json(by_alias=True))
        for rank in range(1, self.group.plan.world_size):
            options = {
                "--plan": plan, "--keys": self.group.keys, "--pod": f"tiny-0-{rank}", "--node": f"studio-{rank}",
                "--state-folder": self.group.folder,
            }  # fmt: skip
            words = [str(word) for pair in options.items() for word in pair]
            with (self.group.folder / f"log-{rank}").open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "thunderfleet_runner.cli", "serve", *words),
                    env={**os.environ, **self.environment(rank)}, stdout=log, stderr=log,
                )  # fmt: skip
            self.processes.append(process)
        limits = attempts.Limits(self.group.plan.bootstrap.attempts, form_seconds, backoff=Backoff(0.05, 30.0))
        return self.group.start(0, command=rank_command, limits=limits, **changes)

    def rank_pid(self, rank: int) -> int:
        (file,) = self.group.folder.glob(f"*-tiny-0-{rank}/rank.pid")
        return int(file.read_text())

    async def until_ready(self) -> None:
        leader, _ = self.group.running[0]
        await self.group.until(lambda: leader.state.phase is GroupPhase.READY, "the group is Ready", SECONDS)

    async def until_failed(self, leader: Any) -> Any:
        await self.group.until(lambda: leader.state.failure is not None, "a failure is reported", SECONDS)
        return leader.state.failure

    async def end(self) -> None:
        await self.group.end()
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        for process in self.processes:
            await process.wait()


@pytest.fixture
async def macs(
    make_group: Callable[..., Any], tmp_path: Path, tiny: Path, deep: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[..., Macs]]:
    made: list[Macs] = []

    def make(size: int = 2) -> Macs:
        made.append(Macs(make_group(size), tmp_path / "macs", deep if size == 3 else tiny, size, monkeypatch))
        return made[-1]

    yield make
    for each in made:
        await each.end()


async def answer(leader: Any, name: str, tokens: int = 16) -> list[int]:
    request = protocol.Request(id=name, prompt=chat_prompt(Path(leader.plan.model_path)), max_tokens=tokens)
    async with asyncio.timeout(SECONDS):
        return [event.token async for event in leader.service.submit(request) if isinstance(event, protocol.Token)]


@pytest.mark.parametrize("size", quick([3], [2, 3]))
async def test_a_mesh_answers_as_one_process_does_and_when_a_rank_freezes_none_keeps_spinning(
    macs: Callable[..., Macs], size: int, yardstick: list[int], deep_yardstick: list[int]
) -> None:
    group = macs(size)
    leader = await group.start()
    await group.until_ready()
    assert leader.state.attempt == 1
    assert await answer(leader, "first", tinymodel.TOKENS) == (deep_yardstick if size == 3 else yardstick)
    last = size - 1
    old = [leader.member.pid, *(group.rank_pid(rank) for rank in range(1, size))]
    os.kill(old[last], signal.SIGSTOP)
    failure = await group.until_failed(leader)
    assert (failure.rank, failure.reason) == (last, "RankFrozen")
    await group.group.until(lambda: not any(map(exists, old)), "no rank is left")


def check_a_point_that_has_failed(leader: Any) -> None:
    """It has cost one attempt."""
    assert leader.state.attempt == 2
    assert leader.state.failure.reason == "MemoryRegionsSpent"


async def check_a_killed_rank(group: Macs, leader: Any, before: list[int]) -> None:
    """It is noticed, although JACCL says nothing."""
    os.kill(group.rank_pid(1), signal.SIGKILL)
    await group.group.until(lambda: leader.state.phase is not GroupPhase.READY, "the death is noticed")
    failure = leader.state.failure
    # Silence, which takes longer to notice, would be another reason.
    assert (failure.rank, failure.node, failure.reason) == (1, "studio-1", "RankKilled")
    await group.until_ready()
    assert await answer(leader, "after a death") == before


async def check_a_collective_that_fails(group: Macs, leader: Any, point: str, before: list[int]) -> None:
    group.fails(1, at=point, attempts=[leader.state.attempt])
    with pytest.raises(Unavailable):
        await answer(leader, "fails")
    failure = leader.state.failure
    assert (failure.rank, failure.node, failure.fault, failure.reason) == (1, "studio-1", FaultClass.RETRY, "RDMAFailed")
    await group.until_ready()
    assert await answer(leader, "after a failure") == before


async def check_a_pulled_cable(group: Macs, leader: Any) -> None:
    """The ranks send heartbeats and wait for each other forever; no step completes. Looking at the port finds it."""
    group.fails(1, at="recv", hang=True)
    group.down(1)
    with pytest.raises(Unavailable):
        await answer(leader, "hangs")
    failure = leader.state.failure
    # Not Stalled, which would have taken five times as long.
    assert (failure.node, failure.fault, failure.reason) == ("studio-1", FaultClass.REPLAN, "PortDown")
    await group.group.until(lambda: leader.state.phase is GroupPhase.GAVE_UP, "another placement is asked for", SECONDS)


@pytest.mark.parametrize("point", quick(["send"], ["send", "recv"]))
async def test_what_fails_in_a_group_is_named_and_mended_until_a_cable_is_pulled(macs: Callable[..., Macs], point: str) -> None:
    group = macs()
    group.fails(0, at="memory_region", attempts=[1], delaySeconds=0.2)
    # Two faults end rank 0 by a signal, which would hold a group on macOS.
    leader = await group.start(wired=None)
    await group.until_ready()
    check_a_point_that_has_failed(leader)
    before = await answer(leader, "before")
    await check_a_killed_rank(group, leader, before)
    await check_a_collective_that_fails(group, leader, point, before)
    await check_a_pulled_cable(group, leader)


async def test_a_mac_that_must_be_rebooted_ends_the_placement_and_is_named(macs: Callable[..., Macs]) -> None:
    group = macs()
    group.fails(1, at="protection_domain", device=group.devices(1, 2)[0])
    leader = await group.start()
    await group.group.until(lambda: leader.state.phase is GroupPhase.GAVE_UP, "the leader gives up", SECONDS)
    failure = leader.state.failure
    assert (failure.fault, failure.reason, failure.node) == (FaultClass.REBOOT, "ProtectionDomain", "studio-1")


async def test_a_cable_that_changes_a_bit_is_named_before_the_model_is_loaded(macs: Callable[..., Macs]) -> None:
    group = macs(3)
    group.fails(2, at="wire", flipAfterBytes=200_000)
    leader = await group.start()
    failure = await group.until_failed(leader)
    assert (failure.rank, failure.node, failure.fault, failure.reason) == (2, "studio-2", FaultClass.REPLAN, "LinkCorrupts")
    assert "data was corrupted on the way from rank 1 (studio-1) to rank 2 (studio-2): " in failure.message
    assert " is " in failure.message and " instead of " in failure.message
    await group.group.until(lambda: leader.state.phase is GroupPhase.GAVE_UP, "another placement is asked for", SECONDS)


@pytest.mark.parametrize(
    ("size", "fault"),
    quick([(3, "sums")], [(size, fault) for size in (3, 4) for fault in ("sums", "large messages")]),
)
async def test_the_cable_of_a_ring_that_changes_only_some_values_or_sizes_is_named(
    macs: Callable[..., Macs], tmp_path: Path, tiny: Path, size: int, fault: str
) -> None:
    """What each rank gets from all others shows only that something is wrong."""
    model = shutil.copytree(tiny, tmp_path / "wide")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"hidden_size": 1024}))
    group = macs(size)
    # Ranks connect to their neighbors only, and divide the layers; the model is never loaded.
    group.group.plan = group.group.plan.model_copy(update={"model_path": str(model), "jaccl_ring": True, "split": Split.TENSOR})
    only = {"sums": {"aboveBytes": 0, "aboveValue": 100}, "large messages": {"aboveBytes": max(SIZES)}}[fault]
    group.fails(2, **{"at": "values", "belowBytes": 1 << 30, "peer": 1, **only})
    leader = await group.start()
    await group.group.until(lambda: leader.state.phase is GroupPhase.GAVE_UP, "another placement is asked for", SECONDS)
    failure = leader.state.failure
    assert (failure.rank, failure.node, failure.reason, failure.peer) == (2, "studio-2", "LinkCorrupts", 1)
    assert "data was corrupted on the way from rank 1 (studio-1) to rank 2 (studio-2): message of " in failure.message
    assert not leader.state.ranks[0].loaded_bytes, "before the model is loaded"


DECODED = {"aboveBytes": 4 * tinymodel.HIDDEN - 1, "belowBytes": 4 * tinymodel.HIDDEN + 1}
"""What ranks exchange for one token of an answer."""


@pytest.mark.parametrize("how", quick(["stale"], ["negated", "stale"]))
async def test_no_wrong_token_leaves_a_mesh_whose_values_change_in_a_later_answer(
    macs: Callable[..., Macs], yardstick: list[int], how: str
) -> None:
    """At one rank only, after all checks, and in messages of one size only."""
    group = macs()
    leader = await group.start()
    await group.until_ready()
    assert await answer(leader, "first", tinymodel.TOKENS) == yardstick
    group.fails(1, at="values", how=how, attempts=[1], **DECODED)
    tokens: list[int] = []
    request = protocol.Request(id="second", prompt=chat_prompt(Path(leader.plan.model_path)), max_tokens=tinymodel.TOKENS)
    with pytest.raises(Unavailable):
        async with asyncio.timeout(SECONDS):
            async for event in leader.service.submit(request):
                tokens += [event.token] if isinstance(event, protocol.Token) else []
    assert tokens == yardstick[: len(tokens)]
    assert leader.state.failure.reason == "Diverged", leader.state.failure.message
    await group.until_ready()
    assert await answer(leader, "third", tinymodel.TOKENS) == yardstick


@pytest.mark.parametrize("verify", ["Quick", "None"])
async def test_what_is_not_to_be_checked_is_not_checked(macs: Callable[..., Macs], verify: str) -> None:
    """A bit changes after more bytes than a test prompt sends."""
    group = macs()
    group.fails(1, at="wire", flipAfterBytes=200_000)
    group.group.plan = group.group.plan.model_copy(update={"verify": Verify(verify)})
    leader = await group.start()
    if verify == "None":
        await group.until_ready()
        assert (leader.state.verified.status, leader.state.verified.reason) == ("Unknown", "VerificationDisabled")
        return
    failure = await group.until_failed(leader)
    assert failure.reason == "LinkCorrupts"
    assert (leader.state.verified.status, leader.state.verified.message) == ("False", failure.message)


async def test_an_exchange_that_does_not_end_ends_the_attempt(
    macs: Callable[..., Macs], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = launch.PROVE_SECONDS
    monkeypatch.setattr(launch, "PROVE_SECONDS", 2.0)
    group = macs()
    # The limit is for rank 0, whose supervisor runs here: what the other one sends in the first attempt is lost.
    group.fails(0, at="wire", loseAfterBytes=150_000, attempts=[1])
    leader = await group.start()
    failure = await group.until_failed(leader)
    # Nothing is lost in the next attempt, whose exchanges may be slow.
    monkeypatch.setattr(launch, "PROVE_SECONDS", usual)
    assert (failure.rank, failure.reason, failure.attempt, failure.fault) == (0, "Stalled", 1, FaultClass.RETRY)
    assert "an exchange did not end within 2 s" in failure.message
    await group.until_ready()
    assert (leader.state.attempt, leader.state.verified.status) == (2, "True")


async def test_a_rank_that_hangs_in_jaccls_init_is_the_one_that_is_named(macs: Callable[..., Macs]) -> None:
    group = macs()
    group.fails(1, at="queue_pair", hang=True, attempts=[1])
    leader = await group.start(form_seconds=5.0)
    failure = await group.until_failed(leader)
    assert (failure.reason, failure.rank, failure.node) == ("InitDeadline", 1, "studio-1")


async def test_a_cable_that_was_pulled_before_the_start_needs_another_placement(macs: Callable[..., Macs]) -> None:
    group = macs()
    group.down(1)
    leader = await group.start()
    await group.group.until(lambda: leader.state.phase is GroupPhase.GAVE_UP, "the leader gives up", SECONDS)
    failure = leader.state.failure
    assert (failure.fault, failure.reason, failure.node) == (FaultClass.REPLAN, "PortDown", "studio-1")


async def test_plain_jaccls_environment(macs: Callable[..., Macs]) -> None:
    group = macs()
    leader = await group.start(jaccl_environment=True)
    await group.until_ready()
    assert len(await answer(leader, "one")) == 16
