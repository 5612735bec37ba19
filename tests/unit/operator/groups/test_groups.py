"""Polling rank 0 over real TLS, and the decisions about cables and models."""

import asyncio
import ssl
import tracemalloc
from asyncio import sslproto
from asyncio.sslproto import SSLProtocol
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.config.config_exception import ConfigException
from thunderfleet_crds.exchange.group import DRAIN_PATH, STATE_PATH
from thunderfleet_crds.exchange.plan import MemoryPlan, Plan, RankPlan
from thunderfleet_crds.kinds.nodeprofile import NodeProfile
from thunderfleet_crds.kinds.thunderboltlink import ThunderboltLink
from thunderfleet_crds.vocabulary import Backend, GroupPhase, Split
from thunderfleet_operator import app
from thunderfleet_operator.act import group_client as listening
from thunderfleet_operator.act.group_client import GroupClient
from thunderfleet_operator.act.keys import KeyPair, group_keys
from thunderfleet_operator.app import Configuration
from thunderfleet_operator.decide.deployment import Settings
from thunderfleet_operator.decide.link_status import summary
from thunderfleet_operator.decide.manifests import PodSettings
from thunderfleet_operator.decide.placing.model import resolve
from thunderfleet_operator.decide.placing.ports import PortSettings
from thunderfleet_operator.placement import Fleet, Mac, ModelFacts, Request
from thunderfleet_operator.watch.leader import Identity

from tests.support.waiting import until_async
from tests.unit.operator.values import plan

MASTER = b"m" * 32
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def plan_at(port: int, epoch: int = 1) -> Plan:
    rank = RankPlan(rank=0, node="a", pod="md-0-e1-0", address="127.0.0.1", control_port=port, gateway_port=1, memory_bytes=1)
    memory = MemoryPlan(context_tokens=1, concurrent_requests=1, cached_tokens=0)
    return Plan(
        namespace="ns", deployment="md", uid="uid", index=0, epoch=epoch, model="m", model_path="/m",
        backend=Backend.NONE, split=Split.NONE, ranks=(rank,), memory=memory,
    )  # fmt: skip


@pytest.fixture
async def serve(tmp_path: Any) -> AsyncIterator[Callable[..., Any]]:
    runners: list[web.AppRunner] = []

    async def start(pair: KeyPair, state: dict[str, Any], asked: asyncio.Queue[dict[str, str]] | None = None) -> int:
        """A rank 0 that answers ``state``, to its own group only."""
        (tmp_path / "c").write_text(pair.certificate)
        (tmp_path / "k").write_text(pair.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "c", tmp_path / "k")
        context.load_verify_locations(tmp_path / "c")
        context.verify_mode = ssl.CERT_REQUIRED

        async def answer(request: web.Request) -> web.Response:
            if asked is not None:
                asked.put_nowait(dict(request.query))
            if "elsewhere" in state:
                raise web.HTTPFound(state["elsewhere"])
            return web.json_response(state)

        async def drain(_: web.Request) -> web.Response:
            refused = state.pop("busy", False)
            if not refused:
                state["phase"] = "Draining"
            return web.json_response(state, status=503 if refused else 202)

        app = web.Application()
        app.add_routes([web.get(STATE_PATH, answer), web.post(DRAIN_PATH, drain)])
        runner = web.AppRunner(app)
        await runner.setup()
        runners.append(runner)
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        return int(runner.addresses[0][1])

    yield start
    for runner in runners:
        await runner.cleanup()


async def test_the_report_of_rank_0_and_its_changes_arrive(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "BUSY_SECONDS", 0.01)
    pair = group_keys(MASTER, plan(1))
    state = {"uid": "uid", "index": 0, "epoch": 1, "phase": "Loading"}
    port = await serve(pair, state)
    changed: asyncio.Queue[str] = asyncio.Queue()
    groups = GroupClient(changed.put_nowait, lambda: True)
    try:
        groups.listen("ns/md", {0: (plan_at(port), pair)})
        async with asyncio.timeout(60):
            assert await changed.get() == "ns/md"
            heard = groups.report("ns/md", 0, 1)
            assert heard.state is not None and heard.state.phase is GroupPhase.LOADING
            state["phase"] = "Ready"
            await changed.get()
        heard = groups.report("ns/md", 0, 1)
        assert heard.state is not None and heard.state.phase is GroupPhase.READY
        # How many requests run changes all the time, and is known without a round for each change.
        state["requests"] = 3
        monkeypatch.setattr(listening, "QUIET_SECONDS", 0.01)
        await until_async(lambda: (said := groups.report("ns/md", 0, 1).state) is not None and said.requests == 3)
        assert changed.empty()
        assert groups.report("ns/md", 0, 2).state is None
        groups.listen("ns/md", {})
        assert groups.report("ns/md", 0, 1).state is None
        async with asyncio.timeout(60):
            polls = [task for task in asyncio.all_tasks() if task.get_name().startswith("poll ")]
            await asyncio.gather(*polls, return_exceptions=True)
    finally:
        await groups.close()


async def test_the_poll_names_the_known_state_so_that_rank_0_answers_on_change(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "QUIET_SECONDS", 0.02)
    asked: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    pair = group_keys(MASTER, plan(1))
    port = await serve(pair, {"uid": "uid", "index": 0, "epoch": 1, "phase": "Ready", "attempt": 2}, asked)
    groups = GroupClient(lambda key: None, lambda: True)
    try:
        groups.listen("ns/md", {0: (plan_at(port), pair)})
        async with asyncio.timeout(60):
            assert await asked.get() == {}, "the first answer is wanted at once"
            assert await asked.get() == {"wait": "0.02", "phase": "Ready", "attempt": "2"}
    finally:
        await groups.close()


async def test_rank_0_hears_what_identifies_the_connections_of_its_cables(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "QUIET_SECONDS", 0.02)
    asked: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    pair = group_keys(MASTER, plan(1))
    port = await serve(pair, {"uid": "uid", "index": 0, "epoch": 1, "phase": "Ready", "attempt": 2}, asked)
    groups = GroupClient(lambda key: None, lambda: True)
    try:
        async with asyncio.timeout(60):
            for text in ("one", "two"):
                groups.listen("ns/md", {0: (plan_at(port), pair)}, {0: text})
                while (await asked.get()).get("connections") != text:
                    pass
            groups.listen("ns/md", {0: (plan_at(port), pair)}, {0: ""})
            while "connections" in await asked.get():
                pass
    finally:
        await groups.close()


async def test_a_group_is_asked_to_drain_until_it_agrees(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "BUSY_SECONDS", 0.01)
    monkeypatch.setattr(listening, "QUIET_SECONDS", 0.01)
    pair = group_keys(MASTER, plan(1))
    state = {"uid": "uid", "index": 0, "epoch": 1, "phase": "Ready", "busy": True}
    changed: asyncio.Queue[str] = asyncio.Queue()
    groups = GroupClient(changed.put_nowait, lambda: True)
    try:
        groups.listen("ns/md", {0: (plan_at(await serve(pair, state)), pair)})
        async with asyncio.timeout(60):
            await changed.get()
            groups.drain("ns/md", 0, 2)
            groups.drain("ns/md", 1, 1)
            drains = [task for task in asyncio.all_tasks() if task.get_name().startswith("drain")]
            assert drains == [], "another epoch, another group"
            groups.drain("ns/md", 0, 1)
            while (heard := groups.report("ns/md", 0, 1)).state is None or heard.state.phase is not GroupPhase.DRAINING:
                await changed.get()
        assert "busy" not in state, "it was asked again"
    finally:
        await groups.close()


async def test_only_a_leader_asks_a_group_to_drain(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "BUSY_SECONDS", 0.01)
    pair = group_keys(MASTER, plan(1))
    state = {"uid": "uid", "index": 0, "epoch": 1, "phase": "Ready"}
    leads = [False]
    groups = GroupClient(lambda key: None, lambda: leads[0])
    try:
        groups.listen("ns/md", {0: (plan_at(await serve(pair, state)), pair)})
        groups.drain("ns/md", 0, 1)
        async with asyncio.timeout(60):
            await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name().startswith("drain")))
            assert state["phase"] == "Ready", "not asked"
            leads[0] = True
            for _ in range(2):
                groups.drain("ns/md", 0, 1)
                await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name().startswith("drain")))
                assert state.pop("phase", None) in ("Draining", None), "asked once"
    finally:
        await groups.close()


@pytest.mark.parametrize("change", [{"epoch": 2}, {"uid": "other"}, {"phase": "Nonsense"}])
async def test_what_another_group_says_is_not_believed(serve: Any, change: dict[str, Any]) -> None:
    pair = group_keys(MASTER, plan(1))
    port = await serve(pair, {"uid": "uid", "index": 0, "epoch": 1, "phase": "Ready", **change})
    groups = GroupClient(lambda key: None, lambda: True)
    try:
        groups.listen("ns/md", {0: (plan_at(port), pair)})
        await until_async(lambda: groups.first_answers_in("ns/md") <= 0)
        assert groups.report("ns/md", 0, 1).state is None
    finally:
        await groups.close()


async def test_an_answer_without_end_and_one_that_points_elsewhere_are_ignored(serve: Any) -> None:
    """A tenant reads the keys of the groups of its namespace, so it can answer in place of rank 0."""
    pair, asked = group_keys(MASTER, plan(1)), asyncio.Queue[dict[str, str]]()
    ready = {"uid": "uid", "index": 0, "epoch": 1, "phase": "Ready"}
    other = await serve(pair, ready, asked)
    for state in ({**ready, "message": "x" * 2**21}, {"elsewhere": f"https://127.0.0.1:{other}{STATE_PATH}"}):
        groups = GroupClient(lambda key: None, lambda: True)
        try:
            groups.listen("ns/md", {0: (plan_at(await serve(pair, state)), pair)})
            await until_async(lambda groups=groups: groups.first_answers_in("ns/md") <= 0)  # type: ignore[misc]
            assert groups.report("ns/md", 0, 1).state is None
        finally:
            await groups.close()
    assert asked.empty()


async def test_a_stranger_on_the_control_port_is_ignored(serve: Any) -> None:
    port = await serve(group_keys(MASTER, plan(9)), {"uid": "uid", "index": 0, "epoch": 1, "phase": "Ready"})
    groups = GroupClient(lambda key: None, lambda: True)
    try:
        groups.listen("ns/md", {0: (plan_at(port), group_keys(MASTER, plan(1)))})
        await until_async(lambda: groups.first_answers_in("ns/md") <= 0)
        assert groups.report("ns/md", 0, 1).state is None
    finally:
        await groups.close()


async def test_the_operators_connections_to_its_groups_keep_small_buffers(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps one connection to each group, since rank 0 holds a poll until something changes."""
    monkeypatch.setattr(SSLProtocol, "max_size", SSLProtocol.max_size)
    configuration = Configuration(
        Settings(PodSettings("image"), PortSettings()), "system", Identity("operator-0"), "127.0.0.1", 0, 0
    )
    with pytest.raises(ConfigException):
        await app.run(replace(configuration, kubeconfig=tmp_path / "missing"))
    plans, pair = dict[int, tuple[Plan, KeyPair]](), group_keys(MASTER, plan(1))
    for number in range(8):
        state = {"uid": "uid", "index": number, "epoch": 1, "phase": "Ready"}
        plans[number] = plan_at(await serve(pair, state)).model_copy(update={"index": number}), pair
    groups = GroupClient(lambda key: None, lambda: True)
    tracemalloc.start()
    try:
        groups.listen("ns/md", plans)
        await until_async(lambda: all(groups.report("ns/md", number, 1).state is not None for number in plans))
        kept = tracemalloc.take_snapshot().filter_traces((tracemalloc.Filter(True, sslproto.__file__),))
        size = sum(one.size for one in kept.statistics("filename"))
        assert 0 < size < len(plans) * 2 * 32 * 1024, "both ends are in this process; asyncio's own buffers take 256 KiB each"
    finally:
        tracemalloc.stop()
        await groups.close()


# --- cables ---


def profile(name: str, **rdma: Any) -> NodeProfile:
    bridge = rdma.pop("bridge", None)
    device = {"name": "rdma_en2", "state": "Active", "gid": "::ffff:169.254.1.1", **rdma.pop("device", {})}
    status = {
        "rdma": {"enabled": True, "devices": [device], **rdma},
        "network": {"interfaces": [{"name": "en2", "kind": "Thunderbolt", **({"bridge": bridge} if bridge else {})}]},
    }
    return NodeProfile.load({"metadata": {"name": name}, "status": status})


def link(*ends: dict[str, Any]) -> ThunderboltLink:
    spec = {"a": {"node": "a", "port": 1}, "b": {"node": "b", "port": 1}}
    base = {
        "port": 1,
        "interface": "en2",
        "rdmaDevice": "rdma_en2",
        "rdmaState": "Active",
        "speedMbps": 80000,
        "seesPeer": True,
    }
    endpoints = [{**base, "node": node, **end} for node, end in zip("ab", ends, strict=False)]
    return ThunderboltLink.load({"metadata": {"name": "a.tb1--b.tb1"}, "spec": spec, "status": {"endpoints": endpoints}})


@pytest.mark.parametrize(
    ("cable", "rdma", "reason"),
    [
        (link({}, {}), {}, "Usable"),
        (link({}), {}, "EndMissing"),
        (link({}, {"speedMbps": 40000}), {}, "BelowThunderbolt5"),
        (link({}, {}), {"enabled": False}, "RDMADisabled"),
        (link({}, {}), {"bridge": "bridge0"}, "BridgeMember"),
        (link({}, {"rdmaState": "Down"}), {}, "PortDown"),
        (link({}, {}), {"device": {"gid": None}}, "NoIPv4Address"),
        (link({"seesPeer": False}, {"seesPeer": False}), {}, "PortDown"),
    ],
)
def test_why_a_cable_is_no_good_for_rdma(cable: ThunderboltLink, rdma: dict[str, Any], reason: str) -> None:
    made = summary(cable, {"a": profile("a"), "b": profile("b", **rdma)}, NOW)
    assert made["rdma"] == reason
    usable = next(c for c in made["conditions"] if c["type"] == "RDMAUsable")
    assert (usable["status"] == "True") == (reason == "Usable") and usable["message"]


def test_one_end_that_sees_is_a_cable() -> None:
    made = summary(link({}, {"seesPeer": False}), {}, NOW)
    assert {c["type"]: c["status"] for c in made["conditions"]} == {
        "Connected": "True",
        "Symmetric": "False",
        "RDMAUsable": "False",
    }


# --- models ---


def test_where_a_model_was_looked_for() -> None:
    macs = (
        Mac("a", "1", 1, models=(ModelFacts("/models/x/y"),)),
        Mac("b", "2", 1, profiled=False),
        Mac("c", "3", 1),
    )
    found = resolve(Fleet(macs), Request(path="/nope"))
    assert not found.found and found.reason == "ModelNotFound"
    for text in ("/nope", "a has 1 model in /models/x", "b has no NodeProfile yet", "c has no models"):
        assert text in found.message
    found = resolve(Fleet(macs), Request(repository="org/name"))
    assert "copy it to org/name below a folder" in found.message


def test_a_message_names_eight_macs_and_counts_the_others() -> None:
    found = resolve(Fleet(tuple(Mac(f"m{number}", "1", 1) for number in range(9))), Request(path="/nope"))
    assert "m7 has no models and 1 more;" in found.message and "m8" not in found.message


def test_without_macs_the_missing_mac_is_the_reason_everywhere() -> None:
    found = resolve(Fleet(), Request(repository="org/name"))
    assert (found.found, found.reason) == (False, "NoMacs") and "thunderfleet-kubelet join" in found.message


def test_an_incomplete_model_is_not_found_and_a_whole_one_elsewhere_is() -> None:
    broken = Mac("a", "1", 1, models=(ModelFacts("/m", complete=False, problem="weights-2 is missing"),))
    found = resolve(Fleet((broken,)), Request(path="/m"))
    assert found.reason == "ModelIncomplete" and "weights-2 is missing" in found.message
    found = resolve(Fleet((broken, Mac("b", "2", 1, models=(ModelFacts("/m"),)))), Request(path="/m"))
    assert found.found and "on b" in found.message


def test_a_model_that_no_mlx_lm_of_the_fleet_runs_is_not_resolved() -> None:
    old = Mac("a", "1", 1, models=(ModelFacts("/m", unsupported="mlx-lm 1 does not support this model: why"),))
    found = resolve(Fleet((old,)), Request(path="/m"))
    assert (found.found, found.reason) == (False, "ModelUnsupported")
    assert found.message.startswith("path /m is on a, but mlx-lm 1 does not support this model: why; choose another model")
    assert resolve(Fleet((old, Mac("b", "2", 1, models=(ModelFacts("/m"),)))), Request(path="/m")).found
    missing = Mac("b", "2", 1, models=(ModelFacts("/m", complete=False),))
    assert resolve(Fleet((old, missing)), Request(path="/m")).reason == "ModelUnsupported"


def test_macs_with_other_models_are_named_in_order() -> None:
    """Equal lists of models are one value on most Macs, and then the Macs are looked at together."""
    shared = (ModelFacts("/m", unsupported="why not"),)
    macs = [Mac(name, "1", 1, models=shared) for name in ("d", "b")]
    other = Mac("c", "1", 1, models=(ModelFacts("/m", unsupported="another reason"), ModelFacts("/n")))
    without = Mac("a", "1", 1, models=(ModelFacts("/n"),))
    found = resolve(Fleet((*macs, other, without)), Request(path="/m"))
    assert found.message.startswith("path /m is on b, c, d, but why not;")
    mended = Mac("c", "1", 1, models=(ModelFacts("/m"),))
    assert resolve(Fleet((*macs, mended, without)), Request(path="/m")).message == "path /m is at /m on b, c, d"
