"""``thunderfleet doctor`` on a Mac of a cluster: it names a fault with the reason and the remedy that kubectl shows.

Two Macs, one Thunderbolt 5 cable, and a LAN.
"""

import json
import sys
from functools import partial
from typing import Any

import pytest
from thunderfleet_localcluster.errors import LocalClusterError

from tests.support.line import Line, condition
from tests.support.waiting import until

Json = dict[str, Any]

LINK = "studio-1.tb1--studio-2.tb1"
END = "studio-1:1"
SECONDS = 90.0


@pytest.fixture(scope="module")
def line(desk: Line) -> Line:
    return desk


def doctor(line: Line, machine: str, *options: str, test: bool = False) -> tuple[int, dict[tuple[str, str], Json]]:
    """Exit code of the command on a machine, and its checks by subject and name."""
    kubeconfig = str(line.cluster.folder.inner_kubeconfig)
    options = options if test else (*options, "--no-test")
    command = (sys.executable, "-m", "thunderfleet_cli", "doctor", "-o", "json", "--kubeconfig", kubeconfig, *options)
    done = line.run(machine, *command, seconds=SECONDS)
    assert done.stdout, done.stderr
    return done.returncode, {(one["subject"], one["name"]): one for one in json.loads(done.stdout)["checks"]}


def shows(line: Line, kind: str, name: str, wanted: str, status: str, reason: str = "") -> Json | None:
    """A condition as kubectl shows it, once it has a status and a reason."""
    found = condition(line.json("get", kind, name), wanted)
    return found if found.get("status") == status and reason in ("", found.get("reason")) else None


def healthy(line: Line) -> bool:
    both = all(shows(line, "nodeprofiles", name, "RDMAReady", "True") for name in line.macs)
    usable = ("Connected", "Symmetric", "RDMAUsable")
    return both and all(shows(line, "thunderboltlinks", LINK, one, "True") for one in usable)


def passed(line: Line) -> dict[tuple[str, str], Json]:
    """The checks, once none fails and the agents have dialled each other over the cable; empty before."""
    code, checks = doctor(line, "studio-1") if healthy(line) else (1, {})
    return checks if code == 0 and checks[LINK, "dial"]["state"] == "ok" else {}


def pull(line: Line) -> None:
    """Pulls the cable, and waits until its link says that it is out."""
    line.cluster.cable("pull", END)
    until(lambda: shows(line, "thunderboltlinks", LINK, "Connected", "False"), "the cable is out")


def told(line: Line) -> dict[tuple[str, str], Json] | None:
    """The checks, once the one of the cable has the reason and message of its condition. After tests that pull it, it flaps."""
    code, checks = doctor(line, "studio-1")
    if (LINK, "Connected") not in checks:
        # A cable that is out for a minute has no object any more: on a slow machine doctor may look after that.
        line.cluster.cable("plug", END)
        back = partial(shows, line, "thunderboltlinks", LINK, "Connected", "True")
        until(back, "the cable is back", retry_on=(LocalClusterError,))
        pull(line)
        return None
    wanted = shows(line, "thunderboltlinks", LINK, "Connected", "False")
    found = checks[LINK, "Connected"]
    same = wanted and (found["reason"], found["finding"]) == (wanted["reason"], wanted["message"])
    return checks if same and (code, found["state"]) == (1, "failure") else None


def test_a_pulled_cable_and_rdma_that_is_off(line: Line) -> None:
    checks = until(lambda: passed(line), "doctor finds no fault")
    assert {checks[LINK, one]["state"] for one in ("Connected", "Symmetric", "RDMAUsable", "dial")} == {"ok"}
    # Agents of this fleet measure nothing, also when doctor asks for it.
    assert checks[LINK, "all-reduce"]["state"] == checks["studio-1", "BenchmarksFresh"]["state"] == "unknown"
    code, tested = doctor(line, "studio-1", test=True)
    assert code == 0 and "benchmarks are disabled" in tested[LINK, "pair"]["finding"]
    assert checks["studio-2", "RDMAReady"]["state"] == checks["this Mac", "rdma"]["state"] == "ok"
    try:
        line.cluster.rdma("off", "studio-2")
        off = until(lambda: shows(line, "nodeprofiles", "studio-2", "RDMAReady", "False", "RDMADisabled"), "RDMA is off")
        pull(line)
        says = "doctor says of the cable what kubectl says"
        checks = until(lambda: told(line), says, retry_on=(LocalClusterError,))
        assert checks["this Mac", "rdma"]["state"] == "ok"
        found = checks["studio-2", "RDMAReady"]
        assert (found["state"], found["reason"], found["finding"]) == ("failure", off["reason"], off["message"])
        assert "rdma_ctl enable" in off["message"]
        code, checks = doctor(line, "studio-2")
        found = checks["this Mac", "rdma"]
        assert (code, found["state"], found["reason"], found["finding"]) == (1, "failure", off["reason"], off["message"])
    finally:
        line.cluster.cable("plug", END)
        line.cluster.rdma("on", "studio-2")
    # A cable that is out for a minute has no object any more until it is back.
    until(lambda: healthy(line), "the desk is healthy again", retry_on=(LocalClusterError,))


def test_a_fix_changes_this_mac_only(line: Line) -> None:
    until(lambda: passed(line), "doctor finds no fault")
    before = line.run("studio-2", "pmset", "-g", "custom").stdout
    code, checks = doctor(line, "studio-1", "--fix")
    assert (code, checks["this Mac", "sleep"]["state"]) == (0, "ok")
    assert line.run("studio-1", "pmset", "-g", "custom").stdout != before
    assert line.run("studio-2", "pmset", "-g", "custom").stdout == before
