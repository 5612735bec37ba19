"""Two Macs that no Thunderbolt cable joins: their supervisors carry the ring over the LAN."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from thunderfleet_crds.exchange.mounts import PLAN_KEY
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_localcluster.models import tinymodel

from tests.support.api import OURS
from tests.support.line import Alone, Deployment, Line, condition
from tests.support.waiting import until

LINK = "studio-1.tb1--studio-2.tb1"
PROMPT, TOKENS = tinymodel.MESSAGES[0]["content"], 16


@pytest.fixture(scope="module")
def line(desk: Line) -> Iterator[Line]:
    """The two Macs without their cable."""
    desk.cluster.cable("pull", "studio-1:1")
    try:
        until(lambda: connected(desk) == "False", "the link says that its cable is out")
        yield desk
    finally:
        desk.cluster.cable("plug", "studio-1:1")
        until(lambda: connected(desk) == "True", "the link says that its cable is back")


def connected(line: Line) -> str:
    """Status of the link's condition; "None" without one, as a link is removed that is out for long."""
    found = line.api.get(f"{OURS}/thunderboltlinks/{LINK}")
    return str(condition(found or {}, "Connected").get("status"))


@pytest.fixture(scope="module")
def relay(line: Line) -> Iterator[Deployment]:
    """A group whose ring has no cable."""
    served = line.deploy("relay", parallelism="Tensor")
    yield served
    line.forget(served)


def published(served: Deployment) -> tuple[Plan, dict[str, Any]]:
    """Its plan, and the object that has it."""
    label = f"thunderfleet.io/deployment={served.name}"
    (item,) = served.line.items("configmaps", "-n", served.namespace, "-l", label)
    return Plan.model_validate_json(item["data"][PLAN_KEY]), item


def test_macs_without_a_cable_say_over_the_lan_what_one_process_says(relay: Deployment, alone: Alone) -> None:
    relay.until_ready()
    plan, item = published(relay)
    dialled = [plan.ranks[plan.relay_ends(entry.rank)[1]].address for entry in plan.ranks]
    assert [entry.relay.address for entry in plan.ranks if entry.relay] == dialled
    assert all((entry.ring_address or "").startswith("127.") for entry in plan.ranks)
    assert "hops over the LAN relayed by the runner pods" in json.dumps(item["metadata"]["annotations"], ensure_ascii=False)
    assert relay.tokens(PROMPT, TOKENS) == alone(PROMPT, TOKENS)


def test_a_rings_ports_are_not_to_be_reached_from_the_lan(line: Line, relay: Deployment) -> None:
    relay.until_ready()
    plan, _ = published(relay)
    one, other = plan.ranks
    if line.cluster.network != "namespaces":
        pytest.skip("on loopback every recorded Mac is everybody's neighbor")
    knock = "import socket, sys; sys.exit(socket.socket().connect_ex((sys.argv[1], int(sys.argv[2]))) == 0)"
    command = [sys.executable, "-c", knock, other.address]
    assert line.run(one.node, *command, str(other.control_port)).returncode == 1, "the control port answers"
    for port in other.ring_ports:
        assert line.run(one.node, *command, str(port)).returncode == 0, f"port {port} of the ring is open to the LAN"
