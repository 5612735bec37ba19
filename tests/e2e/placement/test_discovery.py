"""Discovery on seven recorded Macs and a virtual one: status names every fault, its cable and its fix, and follows each change.

The fleet is a mesh with a hub, Thunderbolt 4 cables, a link that only one end sees, a bridge member and a dead RDMA stack.

With ``THUNDERFLEET_E2E_DISCOVERY=name`` the tests use a running cluster of this fleet and leave it running, changed: the first
tests then need a fresh one.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.client.control import remove
from thunderfleet_localcluster.client.launch import kubelet_command
from thunderfleet_localcluster.errors import LocalClusterError

from tests.support.api import OURS, Api
from tests.support.waiting import WAIT_SECONDS, until

Json = dict[str, Any]

CHART = Path(__file__).parents[3] / "charts" / "thunderfleet"
SYSTEM = "thunderfleet-system"
COMMAND_SECONDS = 30.0
AGENT_METRICS_PORT = 9441

FLEET = """
machines:
  - {name: studio-1, model: Mac Studio (M3 Ultra), memory: 96 GB, rdma: true}
  - {name: studio-2, model: Mac Studio (M3 Ultra), memory: 96 GB, rdma: true}
  - {name: studio-3, model: Mac Studio (M4 Max), memory: 64 GB, rdma: true}
  - {name: studio-4, model: Mac Studio (M4 Max), memory: 64 GB, rdma: true, bridge: [1]}
  - {name: mini-1, model: Mac mini (M4 Pro), memory: 48 GB, rdma: true}
  - {name: mini-2, model: Mac mini (M4), memory: 32 GB}
  - {name: book-1, model: MacBook Pro (M5 Max), memory: 64 GB, rdma: false}
  - {name: virtual-1, model: Virtual Mac (M4 Max), memory: 8 GB}
  - {name: linux-1, kind: linux}
cables:
  - {a: "studio-1:1", b: "studio-2:1", speed: 80}
  - {a: "studio-1:2", b: "studio-3:1", speed: 120/40}
  - {a: "studio-2:2", b: "studio-3:2", speed: 80, through: iVANKY Fusiondock Ultra}
  - {a: "studio-1:3", b: "studio-4:1", speed: 80}
  - {a: "studio-2:3", b: "mini-1:1", speed: 40}
  - {a: "studio-3:3", b: "mini-2:1", speed: 40, through: OWC Thunderbolt Hub}
  - {a: "studio-2:4", b: "book-1:2", speed: 80}
  - {a: "studio-3:4", b: "studio-4:2", speed: 80, seen: b}
  - {a: "studio-1:4", b: "studio-2:5", speed: 80}
"""
FIRST = "studio-1.tb1--studio-2.tb1"
SECOND = "studio-1.tb4--studio-2.tb5"
HIDDEN = "studio-3.tb4--studio-4.tb2"
# Link → the reason of its RDMAUsable, and the command or action that its message names.
RDMA = {
    FIRST: ("Usable", "both ends"),
    SECOND: ("Usable", "both ends"),
    "studio-1.tb2--studio-3.tb1": ("Usable", "both ends"),
    "studio-2.tb2--studio-3.tb2": ("Usable", "both ends"),
    HIDDEN: ("Usable", "both ends"),
    "studio-1.tb3--studio-4.tb1": ("BridgeMember", "run `sudo thunderfleet doctor --fix` on studio-4"),
    "mini-1.tb1--studio-2.tb3": ("BelowThunderbolt5", "use a Thunderbolt 5 cable"),
    "mini-2.tb1--studio-3.tb3": ("BelowThunderbolt5", "connect them without OWC Thunderbolt Hub"),
    "book-1.tb2--studio-2.tb4": ("RDMADisabled", "start book-1 in Recovery, run `rdma_ctl enable`"),
}


PATHS = {"np": f"{OURS}/nodeprofiles", "tbl": f"{OURS}/thunderboltlinks", "node": "/api/v1/nodes"}


@dataclass(frozen=True)
class Fleet:
    """The cluster, and how the tests look at it."""

    cluster: Cluster
    api: Api

    def get(self, kind: str, name: str) -> Json:
        return self.api.get(f"{PATHS[kind]}/{name}") or {}

    def items(self, kind: str) -> dict[str, Json]:
        return {item["metadata"]["name"]: item for item in self.api.items(PATHS[kind])}

    def said(self, kind: str, name: str, condition: str) -> tuple[str, str, str]:
        """Status, reason and message of a condition."""
        return said(self.get(kind, name), condition)

    def reason(self, name: str, condition: str) -> str:
        return self.said("tbl", name, condition)[1]

    def until(self, holds: Callable[[], object], goal: str, seconds: float = WAIT_SECONDS) -> None:
        """Like the shared ``until``; a failure shows the objects."""
        until(holds, goal, seconds, describe=lambda: self.cluster.kubectl("get", "nodes,np,tbl").stdout)

    def rounds(self, machine: str) -> float:
        """How often that Mac's agent has looked at its interfaces."""
        address = self.cluster.machines[machine].address
        url = f"http://{address}:{AGENT_METRICS_PORT}/metrics"
        page = self.cluster.machines[machine].run(["curl", "-sf", "--max-time", "5", url]).stdout
        series = 'thunderfleet_agent_command_seconds_count{source="interfaces"}'
        return next((float(line.split()[-1]) for line in page.splitlines() if line.startswith(series)), 0.0)


def said(item: Json, condition: str) -> tuple[str, str, str]:
    found = item.get("status", {}).get("conditions", [])
    one: Json = next((c for c in found if c["type"] == condition), {})
    return one.get("status", ""), one.get("reason", ""), one.get("message", "")


def complete(fleet: "Fleet", name: str) -> bool:
    return fleet.said("np", name, "InventoryComplete")[0] == "True"


def reaches(item: Json) -> dict[tuple[str, str], Json]:
    facts = item.get("status", {}).get("reachability", [])
    return {(fact["node"], fact["address"]): fact for fact in facts if fact["state"] != "Unreachable"}


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with contextlib.ExitStack() as stack:
        if existing := os.environ.get("THUNDERFLEET_E2E_DISCOVERY"):
            cluster = Cluster.attach(existing)
        else:
            cluster = Cluster.start(FLEET, name=f"e2e-discovery-{os.getpid()}")
            stack.callback(remove, cluster.folder, everything=True)
            stack.callback(cluster.stop)
            cluster.kubectl("create", "namespace", SYSTEM)
            cluster.kubectl("label", "namespace", SYSTEM, "pod-security.kubernetes.io/enforce=privileged")
            values = f"agent.modelFolders={{{cluster.models}}},agent.intervalSeconds=2,agent.reachIntervalSeconds=4"
            values += ",agent.measure.enabled=false,operator.replicas=1"
            cluster.helm(
                *("install", "thunderfleet", str(CHART), "--namespace", SYSTEM, "--set", values, "--wait", "--timeout", "180s"),
                seconds=200,
            )
        yield Fleet(cluster, Api(cluster, COMMAND_SECONDS))


@pytest.fixture
def healthy(fleet: Fleet) -> Fleet:
    """The state of the fleet file: every link has the reports of both ends, and every Mac its profile."""
    wanted = {name: (reason, "OneEnd" if name == HIDDEN else "BothEnds", "Connected") for name, (reason, _) in RDMA.items()}

    def restored() -> bool:
        links, profiles = fleet.items("tbl"), fleet.items("np")
        kinds = ("RDMAUsable", "Symmetric", "Connected")
        found = {name: tuple(said(link, kind)[1] for kind in kinds) for name, link in links.items()}
        macs = {name for name, machine in fleet.cluster.machines.items() if machine.kind == "mac"}
        return found == wanted and {name for name, item in profiles.items() if said(item, "RDMAReady")[0]} == macs

    fleet.until(restored, "every link and every Mac says what it comes to")
    return fleet


def test_a_link_names_its_fault_its_cable_and_the_command_that_fixes_it(healthy: Fleet) -> None:
    links = healthy.items("tbl")
    for name, (reason, mend) in RDMA.items():
        status, said_reason, message = said(links[name], "RDMAUsable")
        assert (said_reason, status) == (reason, str(reason == "Usable")) and mend in message
        assert said(links[name], "Connected")[0] == "True"
    text = healthy.cluster.kubectl("describe", "tbl", "studio-1.tb3--studio-4.tb1").stdout
    assert "sudo thunderfleet doctor --fix" in text
    hidden = said(links[HIDDEN], "Symmetric")
    assert hidden[:2] == ("False", "OneEnd") and "studio-3 does not detect" in hidden[2]
    assert all(said(link, "Symmetric")[0] == "True" for name, link in links.items() if name != HIDDEN)
    ends = {end["node"]: end.get("through") for end in links["studio-2.tb2--studio-3.tb2"]["status"]["endpoints"]}
    assert ends == {"studio-2": ["iVANKY Fusiondock Ultra"], "studio-3": None}
    profiles = healthy.items("np")
    assert said(profiles["book-1"], "RDMAReady")[1] == "RDMADisabled"
    assert said(profiles["studio-4"], "BridgeFree")[:2] == ("False", "BridgeMember")
    virtual = said(profiles["virtual-1"], "RDMAReady")
    assert virtual[:2] == ("False", "RDMAUnsupported") and "virtual machine (VirtualMac2,1)" in virtual[2]
    hardware = {name: profiles[name]["status"]["hardware"] for name in ("studio-1", "book-1")}
    assert {name: one["gpuCores"] for name, one in hardware.items()} == {"studio-1": 60, "book-1": 40}
    columns = healthy.cluster.kubectl("get", "tbl").stdout
    assert "120G" in columns and "TB4" in columns


def test_agents_reach_each_other_over_lan_and_over_each_cable_by_its_own_interface(healthy: Fleet) -> None:
    machines = {name: machine for name, machine in healthy.cluster.machines.items() if machine.kind == "mac"}

    def wanted(name: str) -> dict[tuple[str, str], str]:
        found = {(other, machine.address): "en0" for other, machine in machines.items() if other != name}
        for cable in machines[name].cables:
            there = next(c for c in machines[cable["peer"]].cables if c["port"] == cable["peerPort"])
            if cable["address"] and there["address"]:
                found[(cable["peer"], there["address"])] = cable["interface"]
        return found

    def all_reached() -> bool:
        profiles = healthy.items("np")
        return all(
            {key: fact["interface"] for key, fact in reaches(profiles[name]).items() if fact["state"] == "Reachable"}
            == wanted(name)
            for name in machines
        )

    healthy.until(all_reached, "every agent reached every other")


def test_nothing_changed_nothing_written(healthy: Fleet) -> None:
    def versions() -> dict[str, str]:
        objects = {**healthy.items("np"), **healthy.items("tbl")}
        return {name: item["metadata"]["resourceVersion"] for name, item in objects.items()}

    # Fresh agents still find peers: look from a time on when three rounds of an agent changed nothing.
    def quiet() -> bool:
        before, rounds = versions(), healthy.rounds("studio-1")
        healthy.until(lambda: healthy.rounds("studio-1") >= rounds + 3, "three more rounds")
        return versions() == before

    healthy.until(quiet, "three rounds that write nothing")


def test_a_pulled_cable_is_reported_and_returns_when_plugged_in(healthy: Fleet) -> None:
    cluster = healthy.cluster
    cluster.cable("pull", "studio-2:1")
    healthy.until(lambda: healthy.reason(FIRST, "Connected") == "Unplugged", "the link reports the pulled cable")
    message = healthy.said("tbl", FIRST, "Connected")[2]
    assert "plug the cable into port 1 of studio-1 and port 1 of studio-2" in message
    assert healthy.reason(SECOND, "Connected") == "Connected", "the other cable between the two is another link"
    address = next(c["address"] for c in cluster.machines["studio-2"].cables if c["port"] == 1)
    healthy.until(lambda: ("studio-2", address) not in reaches(healthy.get("np", "studio-1")), "no Mac is reached over it")
    events = ("get", "events", "-n", "default", "--field-selector", f"involvedObject.name={FIRST}")
    healthy.until(lambda: "Unplugged" in cluster.kubectl(*events).stdout, "an Event tells of it")
    cluster.cable("plug", "studio-1:1")
    healthy.until(lambda: healthy.reason(FIRST, "RDMAUsable") == "Usable", "the cable is back")


def test_a_cable_that_negotiates_less_and_an_rdma_switch(healthy: Fleet) -> None:
    cluster = healthy.cluster
    cluster.cable("slow", "studio-1:4", 50 if cluster.network == "namespaces" else None, "40")
    cluster.rdma("off", "studio-3")
    healthy.until(lambda: healthy.reason(SECOND, "RDMAUsable") == "BelowThunderbolt5", "below Thunderbolt 5")
    far = "studio-1.tb2--studio-3.tb1"
    healthy.until(lambda: healthy.reason(far, "RDMAUsable") == "RDMADisabled", "RDMA is off")
    assert "start studio-3 in Recovery" in healthy.said("tbl", far, "RDMAUsable")[2]
    cluster.rdma("on", "studio-3")
    cluster.cable("plug", "studio-1:4")
    healthy.until(lambda: healthy.reason(SECOND, "RDMAUsable") == "Usable", "as fast as before")


def test_a_dead_rdma_stack_and_a_broken_command_cost_their_part_only(healthy: Fleet) -> None:
    cluster = healthy.cluster
    cluster.rdma("hang", "studio-1")
    cluster.damage("garble", "mini-1", "ifconfig")
    cluster.damage("flood", "mini-2", "system_profiler")
    healthy.until(lambda: healthy.said("np", "studio-1", "RDMAReady")[1] == "StackHung", "the stack hangs")
    healthy.until(lambda: healthy.reason(FIRST, "RDMAUsable") == "StackHung", "its links say so")
    assert "reboot" in healthy.said("tbl", FIRST, "RDMAUsable")[2]
    for name, words in (("studio-1", "`ibv_devices`"), ("mini-1", "`ifconfig -a`"), ("mini-2", "`system_profiler")):

        def complains(name: str = name, words: str = words) -> bool:
            return words in healthy.said("np", name, "InventoryComplete")[2]

        healthy.until(complains, f"{name} names {words}")
    # The agent still runs and reports everything else.
    cluster.cable("pull", "studio-1:4")
    healthy.until(lambda: healthy.reason(SECOND, "Connected") == "Unplugged", "a cable of that Mac is followed")
    cluster.cable("plug", "studio-1:4")
    cluster.rdma("on", "studio-1")
    cluster.damage("mend", "mini-1", "ifconfig")
    cluster.damage("mend", "mini-2", "system_profiler")
    for name in ("studio-1", "mini-1", "mini-2"):
        healthy.until(partial(complete, healthy, name), f"{name} is whole again")


def test_a_cable_cut_in_one_direction_shows_as_that(healthy: Fleet) -> None:
    cluster = healthy.cluster
    if cluster.network != "namespaces":
        with pytest.raises(LocalClusterError, match="without network namespaces"):
            cluster.cable("cut", "studio-1:1")
        return
    at = {
        name: next(c["address"] for c in cluster.machines[name].cables if c["port"] == 1) for name in ("studio-1", "studio-2")
    }

    def fact(name: str, other: str) -> Json:
        return reaches(healthy.get("np", name)).get((other, at[other]), {})

    def both() -> Json | None:
        there, back = fact("studio-1", "studio-2"), fact("studio-2", "studio-1")
        return back if there.get("state") == back.get("state") == "Reachable" else None

    since = until(both, "reached both ways")["since"]
    cluster.cable("cut", "studio-1:1")
    healthy.until(lambda: fact("studio-1", "studio-2").get("state") == "Suspect", "suspect")
    healthy.until(lambda: not fact("studio-1", "studio-2"), "gone after three strikes")
    back = fact("studio-2", "studio-1")
    assert (back["state"], back["since"]) == ("Reachable", since), "the other direction has not been touched"
    assert healthy.reason(FIRST, "Connected") == "Connected"
    cluster.cable("plug", "studio-1:1")
    healthy.until(lambda: fact("studio-1", "studio-2").get("state") == "Reachable", "reached again")


def test_a_node_deleted_and_joined_again_leaves_no_ghost(healthy: Fleet) -> None:
    before = healthy.get("np", "mini-2")["metadata"]["uid"]
    healthy.cluster.kubectl("delete", "node", "mini-2")

    def again() -> bool:
        profile = healthy.get("np", "mini-2").get("metadata", {})
        node = healthy.get("node", "mini-2").get("metadata", {}).get("uid")
        owners = [owner["uid"] for owner in profile.get("ownerReferences", [])]
        return bool(node) and profile.get("uid") != before and owners == [node]

    healthy.until(again, "mini-2 is a Node with its own profile")
    healthy.until(lambda: healthy.reason("mini-2.tb1--studio-3.tb3", "Symmetric") == "BothEnds", "its link is whole")


def test_another_mac_under_the_old_name_is_one_mac(healthy: Fleet) -> None:
    """A Mac is replaced by other hardware under the same name: no fact about the old one is left.

    Its Node is deleted and its pods' data wiped; the chip, certificate, switch and domain UUIDs are new.
    """
    cluster, link = healthy.cluster, "mini-1.tb1--studio-2.tb3"
    before = healthy.get("np", "mini-1")
    cluster.machines["mini-1"].off()
    healthy.until(lambda: healthy.reason(link, "Connected") == "NothingPluggedIn", "the link reports its cable")
    assert "mini-1 is off" in healthy.said("tbl", link, "Connected")[2]
    cluster.kubectl("delete", "node", "mini-1")
    shutil.rmtree(cluster.machines["mini-1"].folder / "kubelet" / "pods")
    cluster.machines["mini-1"].on()
    for report, old, new in (
        ("Hardware", '"Apple M4 Pro"', '"Apple M4"'),
        ("Thunderbolt", '_uid_key" : "0x', '_uid_key" : "0xF'),
    ):
        file = cluster.machines["mini-1"].folder / "recorded" / f"SP{report}DataType.json"
        file.write_text(file.read_text().replace(old, new))

    def facts(item: Json) -> list[str]:
        """Facts that identify this Mac: certificate, chip and switches."""
        status = item.get("status", {})
        own = [status.get(part, {}).get(key, "") for part, key in (("agent", "certificateSHA256"), ("hardware", "chip"))]
        return [*own, *(port["switchUID"] for port in status.get("thunderbolt", {}).get("ports", []))]

    def replaced() -> bool:
        now = facts(healthy.get("np", "mini-1"))
        return all(now) and len(now) == len(facts(before)) and not set(now) & set(facts(before))

    healthy.until(replaced, "another agent and other hardware")
    healthy.until(lambda: healthy.reason(link, "Symmetric") == "BothEnds", "its link is whole")
    assert [name for name in healthy.items("tbl") if "mini-1" in name] == [link]

    def labels(item: Json) -> set[str]:
        return {label for label in item["metadata"]["labels"] if label.startswith("domain.")}

    healthy.until(lambda: not labels(before) & labels(healthy.get("np", "mini-1")), "no label of before is left")
    address = next(c["address"] for c in cluster.machines["mini-1"].cables)
    healthy.until(lambda: ("mini-1", address) in reaches(healthy.get("np", "studio-2")), "its neighbor knows it")


# From here on the fleet differs from its file.


def moved(fleet: Fleet) -> str:
    """The cable of mini-1 in another port; the name that its link had before."""
    if any(cable["port"] == 1 for cable in fleet.cluster.machines["mini-1"].cables):
        fleet.cluster.cable("move", "mini-1:1", to="mini-1:2")
    return "mini-1.tb1--studio-2.tb3"


def test_a_cable_moved_to_another_port_is_another_link(healthy: Fleet) -> None:
    moved(healthy)
    new = "mini-1.tb2--studio-2.tb3"
    healthy.until(lambda: healthy.reason(new, "Symmetric") == "BothEnds", "the link of the new port exists")
    assert healthy.reason(new, "RDMAUsable") == "BelowThunderbolt5"


def test_a_renamed_mac_is_one_mac_with_its_new_name(fleet: Fleet) -> None:
    """It joins under another name and starts again; its old Node stays until it is deleted."""
    cluster, old, new = fleet.cluster, "book-1.tb2--studio-2.tb4", "notebook.tb2--studio-2.tb4"
    machine = cluster.machines["book-1"]
    settings = machine.folder / "kubelet.yaml"
    settings.write_text(settings.read_text().replace("nodeName: book-1\n", "nodeName: notebook\n"))
    join_token = cluster.command(do="token")
    files = ["--root", str(machine.folder / "renamed"), "--config", str(settings), "--no-run"]
    join = [
        "join",
        "--server",
        cluster.state["innerServer"],
        "--token",
        join_token["token"],
        "--ca-hash",
        join_token["caHash"],
        *files,
    ]
    done = machine.run([*kubelet_command(), *join], seconds=60)
    assert done.returncode == 0, done.stderr
    machine.off()
    shutil.rmtree(machine.folder / "kubelet")
    (machine.folder / "renamed").rename(machine.folder / "kubelet")
    machine.on()
    fleet.until(lambda: fleet.reason(new, "Symmetric") == "BothEnds", "its cable goes by the new name")
    cluster.kubectl("delete", "node", "book-1")
    fleet.until(lambda: not fleet.get("tbl", old).get("status", {}).get("endpoints"), "no end of the old name is left")
    address = next(c["address"] for c in machine.cables)
    fleet.until(lambda: ("notebook", address) in reaches(fleet.get("np", "studio-2")), "its neighbor knows it")


def test_a_flapping_cable_is_held_still_and_reported(fleet: Fleet) -> None:
    """The fleet is not stable for a minute afterwards."""
    cluster = fleet.cluster
    fleet.until(lambda: fleet.reason(SECOND, "Connected") == "Connected", "the cable is reported")

    def seen(plugged: bool) -> bool:
        wanted = "Connected" if plugged else "Unplugged"
        return fleet.reason(SECOND, "Connected") in (wanted, "Flapping")

    for _ in range(4):
        cluster.cable("pull", "studio-1:4")
        fleet.until(lambda: seen(False), "pulled")
        cluster.cable("plug", "studio-1:4")
        fleet.until(lambda: seen(True), "plugged")
        if fleet.reason(SECOND, "Connected") == "Flapping":
            break
    fleet.until(lambda: fleet.reason(SECOND, "Connected") == "Flapping", "it is called flapping")
    assert "reseat both plugs" in fleet.said("tbl", SECOND, "Connected")[2]


def test_no_object_mentions_a_removed_mac(fleet: Fleet) -> None:
    """The link of a port that lost its cable goes, and so does every fact about a deleted Node (book-1, which was renamed).

    This test is the last one: the agents take a minute, which passes during the others.
    """
    old = moved(fleet)
    fleet.until(lambda: not fleet.get("tbl", old), "the link goes", 150)
    about = ("get", "events", "-n", "default", "--field-selector", f"involvedObject.name={old},reason=Removed")
    why = "neither mini-1 nor studio-2 has reported this cable"
    fleet.until(lambda: why in fleet.cluster.kubectl(*about).stdout, "an Event says why")

    def ghosts() -> list[str]:
        """NodeProfiles and links that mention a Mac that is no longer a Node."""
        nodes, profiles = fleet.items("node"), fleet.items("np")
        known = [name for name, item in profiles.items() if any(node not in nodes for node, _ in reaches(item))]
        return [*known, *(name for name in profiles if name not in nodes)]

    fleet.until(lambda: not ghosts(), "no object mentions a Mac that is gone")
