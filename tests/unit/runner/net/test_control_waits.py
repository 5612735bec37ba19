"""A request for the group's state that waits for a change, so that the operator sees even short phases."""

import asyncio
from typing import Any

import aiohttp
import pytest
from thunderfleet_crds.exchange.group import CONNECTIONS_CHARACTERS, STATE_PATH, WAIT_LIMIT_SECONDS
from thunderfleet_crds.exchange.plan import GROUP_TLS_NAME
from thunderfleet_crds.vocabulary import GroupPhase
from thunderfleet_runner.net import control

LONG = "600"


async def _get(group: Any, **query: str) -> tuple[int, dict[str, Any]]:
    leader = group.plan.ranks[0]
    tls = control.client_tls(group.keys)
    url = f"https://{leader.address}:{leader.control_port}{STATE_PATH}"
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, params=query, ssl=tls, server_hostname=GROUP_TLS_NAME) as answer,
    ):
        return answer.status, await answer.json()


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests may wait for longer than a busy machine needs to answer."""
    monkeypatch.setattr(control, "WAIT_LIMIT_SECONDS", float(LONG))


@pytest.mark.usefixtures("waiting")
async def test_it_answers_when_the_phase_is_another(make_group: Any) -> None:
    group = make_group(2)
    leader = group.start(0)
    await group.until(lambda: leader.state.phase is GroupPhase.WAITING and leader.role.machine.present, "the leader waits")
    asked = asyncio.create_task(_get(group, wait=LONG, phase="Waiting", attempt="0"))
    done, _ = await asyncio.wait({asked}, timeout=0.3)
    assert not done, "nothing has changed yet"
    group.start(1)
    async with asyncio.timeout(60):
        status, state = await asked
    assert status == 200
    assert (state["phase"], state["attempt"]) != ("Waiting", 0)


@pytest.mark.usefixtures("waiting")
async def test_it_answers_at_once_when_something_else_is_known(make_group: Any) -> None:
    group = make_group(2)
    leader = group.start(0)
    await group.until(lambda: leader.role.machine.present, "the leader waits")
    async with asyncio.timeout(60):
        assert (await _get(group, wait=LONG, phase="Ready", attempt="0"))[1]["phase"] == "Waiting"
        assert (await _get(group, wait=LONG, phase="Waiting", attempt="7"))[1]["phase"] == "Waiting"
        assert (await _get(group))[1]["phase"] == "Waiting"
        assert (await _get(group, wait="0.01", phase="Waiting", attempt="0"))[1]["phase"] == "Waiting"


async def test_the_operator_says_what_identifies_the_connections_of_the_cables(make_group: Any) -> None:
    group = make_group(1)
    leader = group.start(0)
    await group.until_ready()
    for said, known in (("one", "one"), ("", "one"), ("x" * (CONNECTIONS_CHARACTERS + 1), "one"), ("two", "two")):
        assert (await _get(group, connections=said))[0] == 200
        assert leader.service.connections == known


@pytest.mark.parametrize("wait", ["-1", "nan", "soon", str(WAIT_LIMIT_SECONDS + 1)])
async def test_a_wait_that_is_none_is_refused_with_a_sentence(make_group: Any, wait: str) -> None:
    group = make_group(2)
    leader = group.start(0)
    await group.until(lambda: leader.role.machine.present, "the leader waits")
    status, said = await _get(group, wait=wait, phase="Waiting", attempt="0")
    assert status == 400
    assert "wait must be a number of seconds from 0 to 30" in said["message"]


@pytest.mark.usefixtures("waiting")
async def test_a_supervisor_that_ends_releases_all_waiting_requests(make_group: Any) -> None:
    group = make_group(1)
    leader = group.start(0)
    await group.until_ready()
    state = leader.state
    asked = asyncio.create_task(_get(group, wait=LONG, phase=state.phase.value, attempt=str(state.attempt)))
    await asyncio.wait({asked}, timeout=0.2)
    async with asyncio.timeout(60):
        await group.end()
        await asyncio.gather(asked, return_exceptions=True)
    assert asked.done()
