"""The running agent: a machine of executables on one side, an API server in memory on the other."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
import yaml
from thunderfleet_agent import cli
from thunderfleet_agent import rounds as rounds_module
from thunderfleet_agent.derive.profile import profile
from thunderfleet_agent.metrics import Metrics
from thunderfleet_agent.observe import collector as collecting
from thunderfleet_agent.observe.collector import INTERFACES, PATIENCE, QUESTIONS, Collector
from thunderfleet_agent.observe.facts import Facts, Source
from thunderfleet_agent.observe.parsers import thunderbolt
from thunderfleet_agent.peers import identity
from thunderfleet_agent.publish.publisher import LINKS, PROFILES, Publisher
from thunderfleet_agent.rounds import AgentSettings, Rounds
from thunderfleet_agent.server import Server
from thunderfleet_agent.weights.keeper import Keeper
from thunderfleet_crds.kinds.nodeprofile import Agent, NodeProfile
from thunderfleet_crds.meta.apimodel import ObjectMeta
from thunderfleet_lib import logtext
from thunderfleet_lib.backoff import Backoff
from thunderfleet_lib.host.hostcmd import FailureKind, Host

PROFILE = f"{PROFILES}/studio-1"
LINK = f"{LINKS}/studio-1.tb1--studio-2.tb3"


NO_TEXT = "printf 'enabled\\nhw.memsize: 1\\nen0: flags=8863<UP> mtu 1500\\n\\000\\001'"

# Collecting


async def test_everything_answers(machine: Any) -> None:
    collector = Collector(Host())
    await asyncio.gather(collector.fast(), collector.slow(), collector.runtime(), collector.scan_models())
    facts = collector.facts
    assert not facts.failures
    assert facts.thunderbolt is not None and len(facts.thunderbolt.ports) == 2
    assert facts.rdma_switch and facts.rdma_devices == ("rdma_en2", "rdma_en3")
    assert facts.runtime is not None and facts.runtime.backends == ("ring",)
    assert facts.models == ()


@pytest.mark.parametrize(
    "command", ["system_profiler", "networksetup", "ifconfig", "sysctl", "sw_vers", "rdma_ctl", "ibv_devices", "ibv_devinfo"]
)
@pytest.mark.parametrize("damage", ["absent", "fails", "empty", "garbage", "no text"])
async def test_one_broken_command_costs_its_part_and_is_named(command: str, damage: str, machine: Any) -> None:
    if damage == "absent":
        machine.lacks(command)
    else:
        machine.script(
            command,
            {"fails": "echo broken >&2; exit 1", "empty": "exit 0", "garbage": "echo '}{ ???'", "no text": NO_TEXT}[damage],
        )
    collector = Collector(Host())
    await asyncio.gather(collector.fast(), collector.slow())
    found = profile(collector.facts, datetime.now(UTC))
    complete = {c.type: c for c in found.status.conditions}["InventoryComplete"]
    assert complete.status.value == "False" and f"`{command}" in complete.message
    assert all(failure.command.startswith(command) for failure in collector.facts.failures.values())
    answered = [part for part in ("thunderbolt", "interfaces", "rdma_switch", "system") if getattr(collector.facts, part)]
    assert len(answered) >= 3


async def test_the_last_answer_is_kept_until_it_has_failed_for_long(machine: Any) -> None:
    collector = Collector(Host())
    await asyncio.gather(collector.fast(), collector.slow())
    machine.script("ifconfig", "exit 1")
    machine.script("system_profiler", "exit 1")
    for _ in range(PATIENCE - 1):
        await collector.fast()
        await collector.slow()
        assert collector.facts.interfaces is not None and collector.facts.thunderbolt is not None
        assert Source.INTERFACES in collector.facts.failures
    await collector.fast()
    await collector.slow()
    assert collector.facts.interfaces is None and collector.facts.thunderbolt is None
    # Facts that cannot change are kept.
    assert collector.facts.hardware is not None


async def test_output_that_is_the_same_again_is_not_parsed_again(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []

    def parse(text: str) -> Any:
        parsed.append(text)
        return INTERFACES.parse(text)

    monkeypatch.setattr(collecting, "INTERFACES", replace(INTERFACES, parse=parse))
    collector = Collector(Host())
    for _ in range(3):
        await collector.carriers()
    first = collector.facts.interfaces
    assert len(parsed) == 1 and first and len(first) > 1
    shorter = parsed[0].partition(f"{first[1].name}: ")[0]
    machine.says("ifconfig", shorter)
    await collector.carriers()
    assert len(parsed) == 2 and collector.facts.interfaces == first[:1]
    machine.script("ifconfig", NO_TEXT)
    await collector.fast()
    assert Source.INTERFACES in collector.facts.failures
    machine.says("ifconfig", shorter)
    await collector.fast()
    assert not collector.facts.failures and len(parsed) == 2


async def test_interfaces_that_were_just_read_are_not_read_again(machine: Any) -> None:
    collector = Collector(Host())
    await collector.carriers()
    read = collector.facts.interfaces
    machine.script("ifconfig", "exit 1")
    await collector.fast(3600.0)
    assert read and collector.facts.interfaces == read and not collector.facts.failures
    assert collector.facts.rdma_switch is not None
    await collector.fast()
    assert Source.INTERFACES in collector.facts.failures
    # An old answer counts for nothing.
    await collector.fast(1e-9)
    assert Source.INTERFACES in collector.facts.failures


async def test_no_device_is_no_failure_though_ibv_devinfo_calls_it_one(machine: Any, shapes: Any) -> None:
    machine.says("ibv_devices", shapes.devices)
    machine.script("ibv_devinfo", "echo 'No IB devices found' >&2; exit 255")
    collector = Collector(Host())
    await collector.fast()
    assert collector.facts.rdma_info == () and not collector.facts.failures


async def test_one_unknown_sysctl_does_not_cost_the_others(machine: Any, shapes: Any) -> None:
    said = shapes.sysctl.replace("iogpu.wired_limit_mb: 0\n", "")
    machine.script("sysctl", f"echo '{said.strip()}'; echo \"sysctl: unknown oid 'iogpu.wired_limit_mb'\" >&2; exit 1")
    collector = Collector(Host())
    await collector.slow()
    assert collector.facts.sysctl is not None and collector.facts.sysctl["hw.ncpu"] == "28"
    assert Source.SYSCTL not in collector.facts.failures


async def test_half_an_answer_is_used_only_where_nothing_better_is_known(machine: Any, shapes: Any) -> None:
    half = shapes.ports[: shapes.ports.index("Hardware Port: Thunderbolt 2")]
    ports = machine.folder / "ports.txt"
    ports.write_text(half)
    collector = Collector(Host())
    await collector.slow()
    assert collector.facts.hardware_ports is not None and "en3" not in collector.facts.hardware_ports
    assert "VLAN Configurations" in collector.facts.failures[Source.HARDWARE_PORTS].message
    ports.write_text(shapes.ports)
    await collector.slow()
    assert collector.facts.hardware_ports["en3"] == "Thunderbolt 2" and not collector.facts.failures
    ports.write_text(half)
    await collector.slow()
    assert collector.facts.hardware_ports["en3"] == "Thunderbolt 2"
    assert Source.HARDWARE_PORTS in collector.facts.failures


async def test_nothing_grows_over_many_rounds_of_damage(machine: Any, shapes: Any) -> None:
    """Tasks, open files and remembered values do not grow over rounds of hanging, flooding and failing commands."""
    collector = Collector(Host())
    machine.script("ibv_devices", "sleep 600 & sleep 600")
    machine.script("rdma_ctl", "while :; do echo 0123456789012345678901234567890123456789012345678901234567890123456789; done")
    machine.script("ifconfig", "exit 3")
    machine.script("sw_vers", "sleep 600 & echo ProductVersion: 26.3")
    # Only these end at their limit: the others may take longer on a busy machine, and end the same in each round.
    damaged = {"ibv_devices", "rdma_ctl", "ifconfig", "sw_vers"}
    asked = [question for question in QUESTIONS if question.source is not Source.RUNTIME]
    quick = [replace(one, seconds=0.3) if one.argv[0] in damaged else one for one in asked]

    async def rounds(count: int) -> tuple[int, int, int]:
        for _ in range(count):
            await asyncio.gather(*(collector._ask(question) for question in quick))
        gc.collect()
        return len(os.listdir("/dev/fd")), len(asyncio.all_tasks()), len(collector.facts.failures) + len(collector._misses)

    before = await rounds(2)
    assert await rounds(6) == before
    assert all(len(str(failure)) < 2000 and not failure.text for failure in collector.facts.failures.values())


# The loop


@contextlib.asynccontextmanager
async def running(kube: Any, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> AsyncIterator[Rounds]:
    """An agent with short intervals."""
    for name in ("SETTLE_SECONDS", "FIRST_LOOK_SECONDS"):
        monkeypatch.setattr(rounds_module, name, 0.01)
    monkeypatch.setattr(rounds_module, "RETRY", Backoff(0.01, 0.01))
    monkeypatch.setattr(rounds_module, "LOOK_SECONDS", 0.2)
    brief = {"fast_seconds": 0.05, "slow_seconds": 0.1, "models_seconds": 0.1}
    chosen = AgentSettings("studio-1", "127.0.0.1", 0, 0, **{**brief, **settings})
    metrics = Metrics()
    collector = Collector(Host(), chosen.model_folders, metrics.observed)
    loop = Rounds(chosen, collector, Publisher(kube, "studio-1", metrics.wrote), metrics)
    task = asyncio.create_task(loop.run())
    try:
        yield loop
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def neighbor(kube: Any, shapes: Any) -> None:
    """studio-2 publishes itself: its port 3 is the other end of our cable."""
    tree = shapes.report(shapes.bus(3, domain=shapes.theirs, speed="80 Gb/s", items=[shapes.peer(shapes.mine)]))
    found = profile(Facts(thunderbolt=thunderbolt.parse(tree)), datetime.now(UTC))
    whole = NodeProfile(metadata=ObjectMeta(name="studio-2", labels=found.labels), status=found.status).dump()
    kube.objects[f"{PROFILES}/studio-2"] = whole


def endpoints(kube: Any) -> list[str]:
    return [endpoint["node"] for endpoint in kube.objects.get(LINK, {}).get("status", {}).get("endpoints", [])]


async def test_from_commands_to_objects_and_back_again(
    machine: Any, kube: Any, shapes: Any, until: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(kube, monkeypatch) as agent:
        await until(lambda: kube.objects.get(PROFILE, {}).get("status", {}).get("thunderbolt"))
        assert LINK not in kube.objects
        # The neighbor starts later and is found.
        neighbor(kube, shapes)
        await until(lambda: endpoints(kube) == ["studio-1"])
        # Before anything has happened to it, so that Prometheus sees the first change as an increase.
        shown = agent._metrics.registry.get_sample_value
        cable = {"name": LINK.rpartition("/")[2], "node": "studio-1"}
        assert shown("thunderfleet_thunderboltlink_changes_total", cable) == 0
        assert shown("thunderfleet_agent_loop_errors_total", {"loop": "models"}) == 0
        # The cable is pulled: our end goes.
        machine.tree(shapes.report(shapes.bus(1, domain=shapes.mine), shapes.bus(2, domain=shapes.mine_too)))
        await until(lambda: endpoints(kube) == [])
        await until(lambda: kube.objects[PROFILE]["status"]["thunderbolt"]["links"] == 0)
        machine.tree(shapes.tree)
        await until(lambda: endpoints(kube) == ["studio-1"])


async def test_a_new_address_of_the_node_is_taken_over(
    machine: Any, kube: Any, shapes: Any, until: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It listens there and publishes it; the Node, which the kubelet keeps current, has the last word."""
    node, moved = kube.objects["/api/v1/nodes/studio-1"], []

    async def move(address: str) -> None:
        moved.append(address)

    async with running(kube, monkeypatch) as loop:
        loop.agent, loop.move = Agent(address="127.0.0.1", port=9440, certificate_sha256="a" * 64), move
        await until(lambda: kube.objects.get(PROFILE, {}).get("status", {}).get("agent"))
        assert moved == [], "a Node without an address changes nothing"
        node["status"] = {
            "addresses": [{"type": "Hostname", "address": "x"}, {"type": "InternalIP", "address": "192.168.64.11"}]
        }
        await until(lambda: kube.objects[PROFILE]["status"]["agent"]["address"] == "192.168.64.11")
        assert (moved, kube.reconnects) == (["192.168.64.11"], 1)
        # The lease changes: this Mac sees it first, and asks until the kubelet has published it.
        monkeypatch.setattr(rounds_module, "LOOK_SECONDS", 3600.0)
        machine.says("ifconfig", shapes.ifconfig.replace("192.168.64.11", "192.168.64.99"))
        await until(lambda: loop._lost_address() and loop._address_due < float("inf"))
        await until(lambda: kube.reconnects == 2)
        node["status"]["addresses"][1]["address"] = "192.168.64.99"
        await until(lambda: kube.objects[PROFILE]["status"]["agent"]["address"] == "192.168.64.99")
        assert moved[1:] == ["192.168.64.99"]
        await until(lambda: loop._address_due == float("inf"))


async def test_a_wrong_clock_is_published_with_its_fix_and_once(
    machine: Any, kube: Any, until: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def clock() -> dict[str, Any]:
        found = kube.objects.get(PROFILE, {}).get("status", {}).get("conditions", [])
        return next((one for one in found if one["type"] == "ClockSynchronized"), {})

    async with running(kube, monkeypatch) as loop:
        await until(lambda: clock().get("status") == "True")
        await until(lambda: kube.objects[PROFILE]["status"].get("hardware"))
        monkeypatch.setattr(rounds_module, "LOOK_SECONDS", 3600.0)
        loop._look_after = 3600.0
        # The clock is set: it is compared at once, not with the next look.
        kube.ahead = 3600.0
        loop._clock = replace(loop._clock, wall=loop._clock.wall - 3600)
        await until(lambda: clock()["status"] == "False")
        assert clock()["reason"] == "ClockWrong"
        assert "this Mac is 3,600 s ahead of the API server's: run `sudo sntp -sS time.apple.com`" in clock()["message"]
        before = clock()
        for _ in range(3):
            loop._looked = None
            loop.publish_soon()
            await until(lambda: loop._looked is not None)
        assert clock() == before


async def test_other_hardware_under_the_old_name_leaves_no_ghost(
    machine: Any, kube: Any, monkeypatch: pytest.MonkeyPatch, until: Any, shapes: Any
) -> None:
    """A Mac is replaced: other ports, domain UUIDs and chip. The earlier agent has published and exited."""
    neighbor(kube, shapes)
    async with running(kube, monkeypatch):
        await until(lambda: kube.objects.get(LINK, {}).get("status", {}).get("endpoints"))
    fresh = "59C97EA5-69DF-4209-82D8-4B84C2A41FDF"
    machine.tree(shapes.report(shapes.bus(2, domain=fresh, uid="0xFFEE")))
    (machine.folder / "hardware.json").write_text(shapes.hardware.replace("M3 Ultra", "M4 Max"))
    (machine.folder / "sysctl.txt").write_text(shapes.sysctl.replace("M3 Ultra", "M4 Max"))
    async with running(kube, monkeypatch):
        await until(lambda: kube.objects[PROFILE]["status"]["hardware"]["chip"] == "Apple M4 Max")
        await until(lambda: not kube.objects[LINK]["status"].get("endpoints"))
    domains = {label for label in kube.objects[PROFILE]["metadata"]["labels"] if label.startswith("domain.")}
    assert domains == {f"domain.thunderfleet.io/{fresh.lower()}"}
    assert [port["switchUID"] for port in kube.objects[PROFILE]["status"]["thunderbolt"]["ports"]] == ["0xFFEE02"]


async def test_a_renamed_mac_is_found_under_its_new_name_while_the_old_node_is_still_there(
    machine: Any, kube: Any, monkeypatch: pytest.MonkeyPatch, until: Any, shapes: Any
) -> None:
    neighbor(kube, shapes)
    renamed = json.loads(json.dumps(kube.objects[f"{PROFILES}/studio-2"]))
    renamed["metadata"]["name"] = "studio-9"
    kube.objects[f"{PROFILES}/studio-9"] = renamed
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    kube.objects["/api/v1/nodes/studio-9"] = {"metadata": {"name": "studio-9"}, **ready}
    kube.objects["/api/v1/nodes/studio-2"] = {"metadata": {"name": "studio-2"}, "status": {"conditions": []}}
    async with running(kube, monkeypatch):
        await until(lambda: f"{LINKS}/studio-1.tb1--studio-9.tb3" in kube.objects)
    assert LINK not in kube.objects


async def test_a_renamed_macs_old_link_is_left_when_its_old_node_falls_silent(
    machine: Any, kube: Any, monkeypatch: pytest.MonkeyPatch, until: Any, shapes: Any
) -> None:
    """The old link keeps the last report of studio-2 (that it sees us), but none of our end."""
    neighbor(kube, shapes)
    node = {"metadata": {"name": "studio-2"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    kube.objects["/api/v1/nodes/studio-2"] = node
    async with running(kube, monkeypatch):
        await until(lambda: endpoints(kube) == ["studio-1"])
        theirs = {"node": "studio-2", "port": 3, "seesPeer": True}
        kube._apply(f"{LINK}/status", "studio-2", {"status": {"endpoints": [theirs]}})
        # While a display hides our end, the cable exists as long as the other end reports it.
        machine.tree(shapes.report(shapes.bus(1, domain=shapes.mine, speed="80 Gb/s", items=[shapes.hub("Studio Display")])))
        await until(lambda: [end.get("seesPeer") for end in kube.objects[LINK]["status"]["endpoints"]] == [False, True])
        # Renamed: the old Node is not Ready any more, the new one is.
        machine.tree(shapes.tree)
        renamed = json.loads(json.dumps(kube.objects[f"{PROFILES}/studio-2"]))
        renamed["metadata"]["name"] = "studio-9"
        kube.objects[f"{PROFILES}/studio-9"] = renamed
        kube.objects["/api/v1/nodes/studio-9"] = json.loads(json.dumps(node))
        node["status"] = {"conditions": [{"type": "Ready", "status": "Unknown"}]}
        await until(lambda: f"{LINKS}/studio-1.tb1--studio-9.tb3" in kube.objects)
        await until(lambda: endpoints(kube) == ["studio-2"])


async def test_what_happens_while_the_api_server_is_away_is_not_lost(
    machine: Any, kube: Any, until: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kube.away = True
    async with running(kube, monkeypatch) as loop:
        await until(lambda: loop._collector.facts.rdma_switch)
        machine.says("rdma_ctl", "disabled\n")
        await until(lambda: loop._collector.facts.rdma_switch is False)
        kube.away = False
        await until(lambda: kube.objects.get(PROFILE, {}).get("status", {}).get("rdma", {}).get("enabled") is False)
        kube.away = True
        machine.says("rdma_ctl", "enabled\n")
        await until(lambda: loop._collector.facts.rdma_switch)
        kube.away = False
        await until(lambda: kube.objects[PROFILE]["status"]["rdma"]["enabled"] is True)


async def test_rounds_that_change_nothing_write_nothing(
    machine: Any, kube: Any, shapes: Any, until: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    neighbor(kube, shapes)
    async with running(kube, monkeypatch) as loop:
        await until(lambda: endpoints(kube) == ["studio-1"] and "runtime" in kube.objects[PROFILE]["status"])
        kube.sent.clear()
        looks = 0
        look = loop._publisher.look

        async def counted() -> None:
            nonlocal looks
            looks += 1
            await look()

        monkeypatch.setattr(loop._publisher, "look", counted)
        await until(lambda: looks >= 3)
        assert kube.sent == []


async def test_a_model_is_published_first_and_its_sizes_when_they_are_known(
    machine: Any, kube: Any, make_model: Any, tmp_path: Path, until: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path / "models" / "org" / "tiny")
    size = json.dumps({"sizedBy": "MLX", "layers": 4, "sizes": [{"worldSize": 1, "tensorBytesPerRank": [32]}]})
    (tmp_path / "size.json").write_text(size)
    machine.script(
        "thunderfleet-runner",
        f"case $1 in size) while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; exec cat {tmp_path}/size.json;; esac; exit 1",
    )

    def model() -> dict[str, Any]:
        models = kube.objects.get(PROFILE, {}).get("status", {}).get("models") or [{}]
        return dict(models[0])

    async with running(kube, monkeypatch, model_folders=(tmp_path / "models",)):
        await until(lambda: model().get("complete"))
        assert "sizedBy" not in model()
        (tmp_path / "go").touch()
        await until(lambda: model().get("sizedBy") == "MLX")


async def test_a_model_of_the_store_that_is_not_for_every_namespace_is_not_published(
    machine: Any, kube: Any, make_model: Any, tmp_path: Path, until: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [str(make_model(tmp_path / "models" / "org" / name)) for name in ("open", "shut")]

    def published() -> list[str]:
        return [one["path"] for one in kube.objects.get(PROFILE, {}).get("status", {}).get("models") or []]

    async with running(kube, monkeypatch, model_folders=(tmp_path / "models",)) as loop:
        await until(lambda: published() == paths)
        keeper = Keeper(cast(Any, None), "studio-1", tmp_path / "store", lambda: None, lambda: None)
        keeper.restricted = frozenset(paths[1:])
        loop.keeper = keeper
        loop.publish_soon()
        await until(lambda: published() == paths[:1])


async def test_a_restart_takes_nothing_away_that_takes_long_to_find_out(
    machine: Any, kube: Any, make_model: Any, tmp_path: Path, until: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restarted agent needs time to find models and runtime; until then the earlier facts stay published."""
    model = make_model(tmp_path / "models" / "org" / "tiny")
    size = json.dumps({"sizedBy": "MLX", "layers": 4, "sizes": [{"worldSize": 1, "tensorBytesPerRank": [32]}]})
    (tmp_path / "size.json").write_text(size)
    (tmp_path / "go").touch()
    waits = f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done"
    asked = f"case $1 in size) exec cat {tmp_path}/size.json;; esac; exec cat {machine.folder}/thunderfleet-runner.txt"
    machine.script("thunderfleet-runner", f"{waits}; {asked}")

    def said() -> tuple[Any, Any]:
        status = kube.objects.get(PROFILE, {}).get("status", {})
        return status.get("runtime"), [(one["path"], one.get("layers")) for one in status.get("models") or []]

    async with running(kube, monkeypatch, model_folders=(tmp_path / "models",)):
        await until(lambda: said()[0] and said()[1] == [(str(model), 4)])
    before = said()
    (tmp_path / "go").unlink()
    async with running(kube, monkeypatch, model_folders=(tmp_path / "models",)) as loop:
        await until(lambda: loop._found is not None and loop._collector.facts.models)
        look = loop._publisher.look
        looks = 0

        async def counted() -> None:
            nonlocal looks
            looks += 1
            await look()

        monkeypatch.setattr(loop._publisher, "look", counted)
        await until(lambda: looks >= 3)
        assert said() == before
        (tmp_path / "size.json").write_text(size.replace('"layers": 4', '"layers": 5'))
        (tmp_path / "go").touch()
        await until(lambda: said() == (before[0], [(str(model), 5)]))
        # The agent now has its own facts: those of the other folder replace the earlier ones.
        (tmp_path / "go").unlink()
        (model / "config.json").write_text('{"model_type": "llama", "other": true}')
        await until(lambda: said()[1] == [(str(model), None)])


# TLS, metrics, health


async def test_kubelet_and_prometheus_ask_without_tls() -> None:
    made = await identity.make(Host())
    metrics, trouble = Metrics(), [None, "no round has ended for 100 s"]
    metrics.observed(Source.THUNDERBOLT, 0.2, None)

    async def nobody(node: str, sha256: str) -> bool:
        return False

    server = Server("127.0.0.1", "studio-1", metrics, lambda: trouble[0], nobody)
    _, metrics_port = await server.start(0, 0, made.server)
    try:
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{metrics_port}/metrics") as answer:
                assert 'thunderfleet_agent_command_seconds_count{source="thunderbolt"} 1.0' in await answer.text()
            async with session.get(f"http://127.0.0.1:{metrics_port}/healthz") as answer:
                assert answer.status == 200 and (await answer.json())["node"] == "studio-1"
            trouble.reverse()
            async with session.get(f"http://127.0.0.1:{metrics_port}/healthz") as answer:
                assert answer.status == 503
    finally:
        await server.close()


# The command line


def test_inspect_prints_the_page_with_reasons(machine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    machine.says("rdma_ctl", "disabled\n")
    assert cli.main(["inspect", "--why", "--node-name", "studio-1"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("studio-1\n  machine  Apple M3 Ultra (Mac15,14), 28 CPU and 60 GPU cores\n")
    assert "1      en2         80 Gb/s   TB5   rdma_en2      Active   Mac Studio" in page
    assert "port 1: RDMA is disabled on this Mac: start this Mac in Recovery, run `rdma_ctl enable`" in page
    assert "rdma_ctl status" in page and "whether RDMA is enabled" in page
    assert max(len(line) for line in page[: page.index("Sources")].splitlines()) < 140


def test_inspect_tells_programs_why_too_and_every_no_has_its_remedy(machine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    machine.lacks("thunderfleet-runner")
    machine.script("sw_vers", "echo broken >&2; exit 3")
    machine.says("ibv_devices", machine.folder.joinpath("ibv_devices.txt").read_text().replace("rdma_en2", "rdma_en9"))
    assert cli.main(["inspect", "--why", "-o", "json", "--node-name", "studio-1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"apiVersion", "kind", "metadata", "status", "why"} and set(found["why"]) == {"sources", "problems"}
    sources = {source["command"]: source for source in found["why"]["sources"]}
    assert len(sources) == len(QUESTIONS) and all({"provides", "answered"} <= set(source) for source in sources.values())
    silent = {command: source["fix"] for command, source in sources.items() if not source["answered"]}
    assert set(silent) == {"sw_vers", "thunderfleet-runner capabilities -o json"}
    assert "run the command on this Mac" in silent["sw_vers"]
    reasons = "\n".join(found["why"]["problems"])
    for said in (
        "`sw_vers` exited with code 3: broken: run the command",
        "put the image's bin folder on PATH",
        "port 1: this Mac does not list an RDMA device for the port",
    ):
        assert said in reasons


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_inspect_prints_the_object(form: str, read: Any, machine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", "-o", form, "--node-name", "studio-1"]) == 0
    found = NodeProfile.load(read(capsys.readouterr().out))
    assert found.metadata.name == "studio-1" and found.metadata.labels
    assert found.status.thunderbolt is not None and found.status.thunderbolt.links == 1


def test_inspect_on_a_machine_without_any_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main(["inspect", "--why"]) == 0
    assert "`system_profiler SPThunderboltDataType -json` does not exist" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["inspect", "--model-folder", "models"], "absolute path"),
        (["run", "--listen-port", "70000"], "0 to 65535"),
        (["run", "--interval", "0"], "1 to 86400 seconds"),
        (["measure", "--model-folder=/models"], "unrecognized arguments"),
        ([], "COMMAND"),
    ],
)
def test_bad_usage_says_what_is_allowed(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(argv)
    assert ended.value.code == 2 and says in capsys.readouterr().err


@pytest.mark.parametrize(("command", "level"), [("inspect", "warning"), ("run", "info"), ("measure", "warning")])
def test_each_command_has_its_own_log_level(command: str, level: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    assert f"minimum log level (default: {level})" in " ".join(capsys.readouterr().out.split())


def test_run_needs_to_know_where_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    monkeypatch.delenv("HOST_IP", raising=False)
    assert cli.main(["run"]) == 2
    assert "--node-name and --host-ip" in capsys.readouterr().err


async def test_the_program_tries_on_without_an_api_server_and_ends_cleanly(machine: Any, tmp_path: Path) -> None:
    config = {
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    where = ["--node-name=studio-1", "--host-ip=127.0.0.1", "--listen-port=0", "--metrics-port=0", f"--kubeconfig={kubeconfig}"]
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "thunderfleet_agent", "run", *where, stderr=asyncio.subprocess.PIPE
    )
    assert program.stderr is not None
    async with asyncio.timeout(60):
        seen = ""
        while "retrying in" not in seen:
            line = await program.stderr.readline()
            assert line, f"ended too soon: {seen}"
            seen += line.decode()
        program.send_signal(signal.SIGTERM)
        rest = (await program.stderr.read()).decode()
        assert await program.wait() == 0
    assert "cannot reach https://127.0.0.1:1" in seen and logtext.readable(rest.splitlines()[-1]) == "INFO stopped"


def test_metrics_distinguish_failure_kinds() -> None:
    from thunderfleet_lib.host.hostcmd import Failure

    metrics = Metrics()
    metrics.observed(Source.RDMA_INFO, 5.0, Failure("ibv_devinfo -v", FailureKind.TIMED_OUT, "did not answer within 5 s"))
    assert b'thunderfleet_agent_command_failures_total{kind="TimedOut",source="rdma-info"} 1.0' in metrics.text()


async def test_a_carrier_is_seen_between_the_rounds_and_its_failures_are_left_to_them(machine: Any, shapes: Any) -> None:
    collector = Collector(Host())
    await asyncio.gather(collector.fast(), collector.slow())
    before = rounds_module._carriers(collector.facts)
    machine.script("ifconfig", "exit 1")
    for _ in range(PATIENCE + 1):
        await collector.carriers()
    assert not collector.facts.failures and rounds_module._carriers(collector.facts) == before
    machine.says("ifconfig", shapes.ifconfig.replace("status: active", "status: inactive"))
    await collector.carriers()
    assert rounds_module._carriers(collector.facts) != before


async def test_a_pulled_cable_is_published_long_before_the_next_round(
    machine: Any, kube: Any, shapes: Any, until: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds_module, "CARRIER_SECONDS", 0.02)
    neighbor(kube, shapes)
    async with running(kube, monkeypatch, fast_seconds=3600.0, slow_seconds=3600.0):
        await until(lambda: endpoints(kube) == ["studio-1"])
        machine.tree(shapes.report(shapes.bus(1, domain=shapes.mine), shapes.bus(2, domain=shapes.mine_too)))
        machine.says("ifconfig", shapes.ifconfig.replace("status: active", "status: inactive"))
        await until(lambda: endpoints(kube) == [])
