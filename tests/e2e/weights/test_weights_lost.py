"""Macs that are switched off in the middle of a copy, and one that is switched on when the hub has gone.

The Macs of the default fleet are a chain: studio-2, studio-1, mini-1. Quicker tests of the same are in test_weights, and in the
unit tests of the agent's copies and of what the operator decides.
"""

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.models import tinymodel

from tests.support.line import Alone, Deploy, Line, chat, condition
from tests.support.models.fetching import (
    HUB_MACHINE,
    Copies,
    configure,
    downloads,
    from_macs,
    received,
    start_hub,
    stop_server,
    store,
)
from tests.support.waiting import until

pytestmark = pytest.mark.soak

REPOSITORY, LAYERS = "joins/tiny", 3
"""Other weights than those that the Macs have: a Mac that has a file already copies nothing."""
BULKY, BULK_BYTES = "chain/tiny", 160 * 2**20
"""A small model with a large file of no use. The other one has a smaller file of that kind."""
CHUNK_BYTES = 8 * 2**20
CHUNKS = 3
SLOW_MBPS, LAN_MBPS = 16, 2
"""Of the first cable, and of what the first Mac sends over the LAN: the copy takes more than a minute, and the Mac in the
middle is switched off while most of it is still to come."""
FIRST, MIDDLE, LAST = "studio-2", "studio-1", "mini-1"
SLOW_END, LAST_LINK = "studio-1:1", "mini-1.tb1--studio-1.tb2"
LABEL = "example.com/holds"
PROMPT, TOKENS = "Hello", 8
LOST_SECONDS = 150.0


@pytest.fixture(scope="module")
def hub(line: Line, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A hub with the models, which the operator uses."""
    folder = line.cluster.machines[HUB_MACHINE].folder / "hub"
    tinymodel.make(folder / "joins", layers=LAYERS)
    (folder / "joins" / "notes.txt").write_bytes(random.Random(16).randbytes(CHUNKS * CHUNK_BYTES))
    tinymodel.make(folder / "chain", seed=LAYERS)
    (folder / "chain" / "notes.txt").write_bytes(random.Random(15).randbytes(BULK_BYTES))
    values = tmp_path_factory.mktemp("hub") / "values.yaml"
    configure(line, values, {"hub": {"enabled": True, "endpoint": start_hub(line, {REPOSITORY: "joins", BULKY: "chain"})}})
    yield
    # One of the tests has ended it.
    stop_server(line)
    line.kubectl("label", "node", *line.macs, f"{LABEL}-")
    configure(line, values, {"hub": {"enabled": False, "endpoint": ""}})


def hold(line: Line, value: str, *macs: str) -> None:
    """Labels Macs, so that a selector finds them."""
    line.kubectl("label", "node", "--overwrite", *macs, f"{LABEL}={value}")


def interface(line: Line, mac: str) -> str:
    """The interface of a Mac's only cable."""
    (cable,) = line.cluster.machines[mac].cables
    return str(cable["interface"])


@contextlib.contextmanager
def slow_lan(line: Line, mac: str) -> Iterator[None]:
    """What a Mac sends over the LAN is slow meanwhile, so that copies take its cables, however late they are connected."""
    discipline = ("dev", "en0", "root")
    shape = ("tbf", "rate", f"{LAN_MBPS}mbit", "burst", "64kb", "latency", "50ms")
    shaped = line.run(mac, "tc", "qdisc", "add", *discipline, *shape)
    assert shaped.returncode == 0, shaped.stderr
    try:
        yield
    finally:
        # A Mac that is off has lost it.
        with contextlib.suppress(LocalClusterError):
            line.run(mac, "tc", "qdisc", "del", *discipline)


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a model by name. A link in a Mac's store leads to a blob beside it."""
    return {path.name: (folder / path.readlink() if path.is_symlink() else path).read_bytes() for path in folder.iterdir()}


def test_a_mac_that_is_lost_while_it_receives_and_forwards_is_replaced_and_goes_on_later(line: Line, hub: None) -> None:
    source = contents(line.cluster.machines[HUB_MACHINE].folder / "hub" / "chain")
    copies = Copies(line, "chain", BULKY, nodeSelector={LABEL: "chain"})
    hold(line, "chain", FIRST)
    middle = line.cluster.machines[MIDDLE]
    repository = f"models--{BULKY.replace('/', '--')}"
    try:
        copies.keep()
        copies.until_on(1)
        commit, asked = copies.status()["commit"], downloads(line)
        line.cluster.cable("slow", SLOW_END, SLOW_MBPS)
        before = received(line, LAST, interface(line, LAST))
        with slow_lan(line, FIRST), slow_lan(line, MIDDLE):
            hold(line, "chain", MIDDLE, LAST)
            until(
                lambda: received(line, LAST, interface(line, LAST)) - before > 1.2 * CHUNK_BYTES,
                "the Mac in the middle forwards",
                LOST_SECONDS,
                describe=lambda: str(copies.status()),
            )
            middle.off()
        # It is lost as a receiver and as a source: the rest goes on.
        until(
            lambda: copies.of(LAST).get("phase") == "Complete",
            "the last Mac has it",
            LOST_SECONDS,
            describe=lambda: str(copies.status()),
        )
        assert contents(store(line, LAST) / repository / "snapshots" / commit) == source
        blobs = store(line, MIDDLE) / repository / "blobs"
        assert not (store(line, MIDDLE) / repository / "snapshots").exists()
        (partial,) = (path for path in blobs.iterdir() if path.name.endswith(".incomplete"))
        arrived = min(partial.stat().st_blocks * 512, BULK_BYTES)
        assert CHUNK_BYTES < arrived < BULK_BYTES
        until(
            lambda: "not Ready" in copies.of(MIDDLE).get("message", ""),
            "the status says what the copy waits for",
            LOST_SECONDS,
            describe=lambda: str(copies.status()),
        )
        status = copies.status()
        assert status["copies"] == "2/3"
        fetched = condition({"status": status}, "Fetched")
        assert fetched["status"] == "False" and f"{MIDDLE} " in fetched["message"], fetched
        middle.on()
        until(line.ready_machines, "the Mac is back")
        copies.until_on(3)
        assert contents(store(line, MIDDLE) / repository / "snapshots" / commit) == source
        # What had arrived is not fetched again, apart from chunks that were on their way.
        whole = sum(map(len, source.values()))
        assert from_macs(line, MIDDLE) < whole - arrived + 4 * CHUNK_BYTES
        assert downloads(line) == asked
    finally:
        line.cluster.cable("plug", SLOW_END)
        if not next(one for one in line.cluster.status()["machines"] if one["name"] == MIDDLE)["on"]:
            middle.on()
        copies.delete()


# The last one: it ends the hub.
def test_a_mac_that_joins_when_the_hub_has_gone_copies_over_its_cable_and_serves(
    line: Line, hub: None, deploy: Deploy, alone: Alone
) -> None:
    hold(line, "middle", MIDDLE)
    hold(line, "last", LAST)
    nodes = {"max": 1, "selector": {LABEL: "middle"}}
    deployment = deploy("joins", model={"repository": REPOSITORY}, nodes=nodes).until_ready()
    last = line.cluster.machines[LAST]

    def connected() -> bool:
        return condition(line.json("get", "tbl", LAST_LINK), "Connected").get("status") == "True"

    last.off()
    stop_server(line)
    until(lambda: not connected(), "its cable is not connected")
    last.on()
    until(connected, "the Mac has joined, and its cable is connected")
    until(line.ready_machines, "its Node is Ready")
    before = received(line, LAST, interface(line, LAST))
    with slow_lan(line, MIDDLE):
        deployment.patch({"nodes": {"selector": {LABEL: "last"}}})
        deployment.until(lambda: [rank["node"] for rank in deployment.ranks()] == [LAST], "its place is on the new Mac")
        deployment.until_ready()
    copy = next(one for one in deployment.status["copies"] if one["node"] == LAST)
    assert {name: copy.get(name) for name in ("phase", "source", "peer", "link")} == {
        "phase": "Complete",
        "source": "Peer",
        "peer": MIDDLE,
        "link": LAST_LINK,
    }
    assert received(line, LAST, interface(line, LAST)) - before > (CHUNKS - 1) * CHUNK_BYTES
    answer = line.request(f"{deployment.endpoint}/chat/completions", {**chat(PROMPT, TOKENS), "model": REPOSITORY})
    assert answer.json["choices"][0]["token_ids"] == alone(PROMPT, TOKENS, LAYERS)
