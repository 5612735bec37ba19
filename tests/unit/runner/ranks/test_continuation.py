"""Groups of real ranks that are asked to continue passages, before they serve and while they are idle."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from thunderfleet_crds.vocabulary import GroupPhase
from thunderfleet_runner import protocol
from thunderfleet_runner.api.service import Service, Unavailable
from thunderfleet_runner.api.upkeep import continuation, idle
from thunderfleet_runner.group import history
from thunderfleet_runner.host import preflight

from tests.support.models import copymodel

SMALL, LARGE = 1000, 6000
"""Vocabularies: enough for the shortest passage, and for the next one."""
ROOM = {"contextTokens": 4096, "concurrentRequests": 4, "cachedTokens": 4096}
PASSED = (300,)

Served = Callable[..., Any]


@pytest.fixture
def copier(tmp_path: Path) -> Path:
    copymodel.make(tmp_path / "copier", SMALL)
    return tmp_path / "copier"


def break_tensor(folder: Path) -> None:
    """One tensor is wrong; nothing that is compared at the start of an attempt has changed."""
    wrong = copymodel.weights(SMALL, copymodel.SEED)
    wrong["model.layers.1.self_attn.v_proj.weight"] = wrong["model.layers.1.self_attn.q_proj.weight"]
    mx.save_safetensors(str(folder / "model.safetensors"), wrong, metadata={"format": "mlx"})


async def proved(group: Any) -> Any:
    leader = group.running[0][0]
    await group.until(lambda: leader.state.verified.lengths == PASSED, "the passages are continued")
    return leader


async def test_a_pipeline_continues_passages_while_it_is_idle(served: Served, copier: Path) -> None:
    async with served(copier, 2, "Pipeline", memory=ROOM, benchmark=True) as (group, _):
        leader = group.running[0][0]
        await group.until(lambda: leader.state.verified.lengths, "the passage is continued")
        told = leader.state.verified
        assert (told.status, told.reason, told.digest) == ("True", "Verified", preflight.digest(group.plan))
        assert (
            told.lengths == (300,)
            and "right, in " in told.message
            and "; answers: passages of 300 tokens continued correctly" in told.message
        )
        await group.until(lambda: leader.state.benchmark is not None, "the benchmark follows")


async def test_a_client_comes_first(served: Served, copier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "IDLE_SECONDS", 0.1)
    copymodel.make(copier, LARGE)
    ask = continuation._ask
    asked: list[tuple[int, frozenset[int]]] = []
    """Each length, and what had passed by then."""

    async def client_comes(service: Service) -> None:
        """In the turn of the loop after the passage is with the rank: it cannot be over by then, however fast the rank is."""
        while not service.running:  # noqa: ASYNC110
            await asyncio.sleep(0)  # an event would wait for a turn of the loop more
        service.arrival.set()

    async def interrupted(service: Service, length: int, **options: bool) -> None:
        asked.append((length, service.answers.passed))
        comes = asyncio.create_task(client_comes(service)) if [passage for passage, _ in asked] == [300, 2600] else None
        try:
            await ask(service, length, **options)
        finally:
            if comes is not None:
                await comes

    monkeypatch.setattr(continuation, "_ask", interrupted)
    async with served(copier, 1, "None", memory=ROOM, benchmark=True) as (group, client):
        service = group.running[0][0].service
        await group.until(lambda: service.answers.passed == {300, 2600}, "the long passage is asked again")
        assert asked[:3] == [(300, frozenset()), (2600, {300}), (2600, {300})], "the passage gives way, and is asked again"
        body = {"model": "thunderfleet/tiny", "prompt": [300, 301, 302], "max_tokens": 2}
        async with client.post("/v1/completions", json=body) as response:
            assert response.status == 200, await response.text()


async def test_a_wrong_tensor_ends_the_group_after_one_more_attempt(served: Served, copier: Path) -> None:
    # The kill is only to load the model again: on macOS, a second one would hold the group.
    async with served(copier, 1, "None", memory=ROOM, benchmark=True, wired=None) as (group, client):
        leader = await proved(group)
        assert "answers: passages of 300 tokens continued correctly" in leader.state.verified.message
        break_tensor(copier)
        os.kill(leader.member.pid, signal.SIGKILL)
        await group.until(lambda: leader.state.phase is GroupPhase.GAVE_UP, "it gives up")
        state = leader.state
        assert (state.failure.reason, state.failure.rank, state.attempt) == ("OutputWrong", None, 3)
        assert "a passage of 300 tokens and then 32 of these tokens again; token 1 of the answer" in state.failure.message
        assert (state.verified.status, state.verified.reason) == ("False", "OutputWrong")
        assert state.verified.lengths == PASSED, "what is remembered of the weights stays"
        async with client.post("/v1/completions", json={"model": "thunderfleet/tiny", "prompt": "a"}) as response:
            assert response.status == 503


@pytest.mark.parametrize("memory", ["plan", "supervisor"])
async def test_what_was_proved_before_is_asked_before_clients_are_served(
    served: Served, make_group: Served, copier: Path, monkeypatch: pytest.MonkeyPatch, memory: str
) -> None:
    """The plan has what earlier placements proved; a supervisor that has restarted knows what it proved itself."""
    ask = continuation.before_serving
    refused: list[str] = []

    async def private(service: Service) -> None:
        assert not service.ready
        try:
            await anext(service.submit(protocol.Request(id="client", prompt=protocol.Prompt.of((1,)), max_tokens=1)))
        except Unavailable as error:
            refused.append(str(error))
        await ask(service)

    monkeypatch.setattr(continuation, "before_serving", private)
    digest = preflight.digest(make_group(1).plan.model_copy(update={"model_path": str(copier)}))
    known: dict[str, Any] = {}
    if memory == "plan":
        known = {"provenLengths": {"digest": digest, "lengths": [*PASSED, 2600]}}
    else:
        monkeypatch.setattr(history, "load", lambda path, plan: history.History(digest=digest, lengths=PASSED))
    async with served(copier, 1, "None", memory=ROOM, plan=known) as (group, _):
        # Nothing is asked while this group is idle.
        assert group.running[0][0].service.answers.passed == set(PASSED)
    assert refused == ["the group checks its answers before it serves"]
