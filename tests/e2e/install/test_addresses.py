"""A Mac gets another address, as with a new DHCP lease, and everything that depends on it follows."""

from typing import Any

import pytest
from thunderfleet_localcluster.errors import LocalClusterError

from tests.support.api import OURS
from tests.support.line import SYSTEM, Alone, Line, condition
from tests.support.waiting import until

PROMPT, TOKENS = "Where do you live now?", 12


@pytest.fixture(scope="module")
def line(desk: Line) -> Line:
    return desk


def node(line: Line, name: str) -> dict[str, Any]:
    return line.json("get", "node", name)


def address_of(line: Line, name: str) -> str:
    return next(str(one["address"]) for one in node(line, name)["status"]["addresses"] if one["type"] == "InternalIP")


def agent_pod(line: Line, name: str) -> dict[str, Any]:
    found = line.items(
        "pods", "-n", SYSTEM, "-l", "app.kubernetes.io/component=agent", "--field-selector", f"spec.nodeName={name}"
    )
    return found[0]


def restarts_of(pod: dict[str, Any]) -> tuple[str, int]:
    """The pod and how often its container was restarted, also by earlier tests."""
    return pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"]


def other(address: str) -> str:
    """Another address in the same LAN."""
    return f"{address.rpartition('.')[0]}.{int(address.rpartition('.')[2]) + 60}"


def logs(line: Line, pod: dict[str, Any]) -> str:
    return line.kubectl("logs", "-n", SYSTEM, pod["metadata"]["name"], "--tail=1")


def test_everything_follows_a_new_address(line: Line, alone: Alone) -> None:
    served = line.deploy("moves", parallelism="Pipeline", transport="Ring").until_ready()
    mac = str(served.ranks()[0]["node"])
    restarts = restarts_of(agent_pod(line, mac))
    old, epoch = address_of(line, mac), served.group()["epoch"]
    new = other(old)
    line.cluster.lan_address(mac, new)
    until(lambda: address_of(line, mac) == new, "the Node has the new address")
    assert new in line.kubectl("get", "node", mac, "-o", "wide")
    # The API server verifies the kubelet's certificate for the new address.
    pod = agent_pod(line, mac)
    assert until(lambda: logs(line, pod), "kubectl logs works", retry_on=(LocalClusterError,))
    changed = ("get", "events", "--field-selector", f"involvedObject.name={mac},reason=NodeAddressChanged")
    assert f"the address changed from {old} to {new}" in until(lambda: line.kubectl(*changed), "an event tells of it")

    def profile() -> dict[str, Any]:
        return line.api.get(f"{OURS}/nodeprofiles/{mac}") or {}

    until(lambda: profile()["status"]["agent"]["address"] == new, "the agent publishes it")
    until(lambda: agent_pod(line, mac)["status"]["hostIP"] == new, "the hostIP of the agent's pod follows")
    assert agent_pod(line, mac)["status"]["podIP"] == old, "as in Kubernetes"
    assert restarts_of(agent_pod(line, mac)) == restarts, "nothing had to restart"

    def reaches_it() -> bool:
        peer = next(name for name in line.macs if name != mac)
        known = (line.api.get(f"{OURS}/nodeprofiles/{peer}") or {})["status"].get("reachability", [])
        return (mac, new) in [(fact["node"], fact["address"]) for fact in known]

    until(reaches_it, "its peer has dialled it there")
    served.until(lambda: served.group()["epoch"] > epoch, "the group gets another placement")
    assert served.group()["lastFailure"]["reason"] == "AddressLost", served.conditions()
    served.until_ready()
    assert new in [rank["address"] for rank in served.ranks()]
    assert served.tokens(PROMPT, TOKENS) == alone(PROMPT, TOKENS)


@pytest.mark.soak
def test_a_mac_that_boots_without_a_lease_waits_for_one(line: Line) -> None:
    """It publishes no loopback address meanwhile."""
    mac = line.cluster.machines["studio-2"]
    address = address_of(line, mac.name)
    booted = node(line, mac.name)["status"]["nodeInfo"]["bootID"]
    mac.off()
    line.cluster.lan_address(mac.name, "none")
    until(lambda: condition(node(line, mac.name), "Ready").get("status") != "True", "its Node is not Ready")
    before = mac.log.stat().st_size
    mac.on()
    waits = b"the Node waits for an address"
    until(lambda: waits in mac.log.read_bytes()[before:], "the kubelet says what it waits for")
    assert address_of(line, mac.name) == address, "the last one stays published"
    line.cluster.lan_address(mac.name, other(address))
    until(lambda: address_of(line, mac.name) == other(address), "the Node has the new address")
    until(line.ready_machines, "and is Ready")
    assert node(line, mac.name)["status"]["nodeInfo"]["bootID"] != booted
