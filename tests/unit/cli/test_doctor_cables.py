"""The test of cables by ``thunderfleet doctor``: which agents are asked, and what their answers say."""

import json
from typing import Any

import pytest
from thunderfleet_cli.doctor.checks import cabletests
from thunderfleet_cli.doctor.checks.apiservers import api_servers
from thunderfleet_cli.doctor.checks.cabletests import Tried
from thunderfleet_cli.doctor.checks.selftest import self_test
from thunderfleet_controlplane.balancer.look import Look
from thunderfleet_crds.vocabulary import MeasurementTransport

Json = dict[str, Any]

LINK = "a.tb1--b.tb1"


def pod(node: str, ready: bool = True, measure: str = "{}") -> Json:
    container = {"name": "agent", "command": ["thunderfleet-agent", "run"], "args": [f"--measure={measure}"]}
    return {
        "metadata": {"namespace": "system", "name": f"agent-{node}"},
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"conditions": [{"type": "Ready", "status": str(ready)}]},
    }


def link(first: str, second: str, port: int = 1) -> Json:
    ends = {"a": {"node": first, "port": port}, "b": {"node": second, "port": port}}
    return {"metadata": {"name": f"{first}.tb{port}--{second}.tb{port}"}, "spec": ends}


def answer(kind: str, **fields: object) -> Json:
    return {"probe": f"{kind}: b", "kind": kind, "link": LINK, **fields}


def checks(tried: Tried | None, usable: str = "True") -> dict[str, tuple[str, str]]:
    conditions = {"Connected": {"status": "True"}, "RDMAUsable": {"status": usable}}
    return {one.name: (one.state.value, one.finding) for one in self_test(link("a", "b"), conditions, {}, tried)}


def test_each_pair_of_macs_is_one_test_and_no_mac_is_in_two_at_a_time() -> None:
    ready = cabletests.agents([pod(node) for node in "abcd"])
    links = [link("a", "b"), link("a", "b", 2), link("a", "c"), link("c", "d"), link("b", "d")]
    wanted, problems = cabletests.tests(links, ready)
    assert problems == {}
    assert [(one.agent.pod, one.peer, len(one.links)) for one in wanted] == [
        ("agent-a", "b", 2),
        ("agent-a", "c", 1),
        ("agent-c", "d", 1),
        ("agent-b", "d", 1),
    ]
    together = [[(one.agent.node, one.peer) for one in each] for each in cabletests.rounds(wanted)]
    assert together == [[("a", "b"), ("c", "d")], [("a", "c"), ("b", "d")]]


def test_a_mac_whose_agent_is_not_ready_tests_nothing() -> None:
    wanted, problems = cabletests.tests([link("a", "b")], cabletests.agents([pod("a"), pod("b", ready=False)]))
    assert wanted == [] and "no agent is ready on b" in problems[LINK]


@pytest.mark.parametrize(
    ("measure", "transport"),
    [
        ('{"rdma": {"transport": "Ring"}}', "ring"),
        ('{"rdma": {"transport": "RDMA"}}', "rdma"),
        ('{"rdma": {"transport": "x"}}', "rdma"),
        ("[]", "rdma"),
        ("{", "rdma"),
    ],
)
def test_both_ends_use_the_transport_of_the_agent(measure: str, transport: str) -> None:
    (one,), _ = cabletests.tests([link("a", "b")], cabletests.agents([pod("a", measure=measure), pod("b")]))
    assert one.argv == ("thunderfleet-agent", "measure", "link", "b", "--test", "-o", "json", "--transport", transport)


@pytest.mark.parametrize(
    ("output", "error", "problem"),
    [
        ("", "thunderfleet-agent measure: b has no NodeProfile\n", "b has no NodeProfile"),
        ("", "Traceback\nKeyError: 1\n", "KeyError: 1"),
        ("{", "", "{"),
        ("null", "", "null"),
        ("", "", "exit code 1 without an answer"),
        (json.dumps([{"probe": "rdma", "error": "not measured: no JACCL"}, 7]), "", "not measured: no JACCL"),
        ("x" * 5000, "", "x" * 599 + "…"),
        ("[" * 100_000, "too deep", "too deep"),
        ("", "one\x1b[2Jtwo", "one [2Jtwo"),
    ],
)
def test_a_command_without_an_answer_about_the_cable(output: str, error: str, problem: str) -> None:
    (one,), _ = cabletests.tests([link("a", "b")], cabletests.agents([pod("a"), pod("b")]))
    tried = cabletests.read(one, 1, output, error)
    assert tried == {LINK: Tried(MeasurementTransport.RDMA, {}, problem)}
    found = checks(tried[LINK])
    assert found["test"] == ("unknown", f"this cable was not tested now: {problem}")
    assert found["dial"][0] == found["all-reduce"][0] == "unknown", "what the agents have seen counts"


def measured(
    rates: tuple[int, ...], at: str = "2026-03-01T12:00:00Z", changed: str = "2026-03-01T11:00:00Z"
) -> tuple[str, str]:
    """What agents have measured over RDMA on a cable that changed then."""
    found = [{"transport": "RDMA", "measuredAt": at, "throughputMbps": rate} for rate in rates]
    conditions = {kind: {"status": "True", "lastTransitionTime": changed} for kind in ("Connected", "RDMAUsable")}
    cable = link("a", "b") | {"status": {"measurements": found}}
    return next((one.state.value, one.finding) for one in self_test(cable, conditions, {}, None) if one.name == "all-reduce")


def test_what_agents_have_measured_counts_until_the_cable_changes() -> None:
    right = "an all-reduce over RDMA gave the right sum at 2026-03-01 12:00:00 UTC; 37.5 Gb/s each way"
    assert measured((37_500, 38_000)) == ("ok", right)
    to_do = (
        "they do so when no group uses it (agent.measure of the chart); the condition BenchmarksFresh of both NodeProfiles "
        "shows when, or why not; to test it now, run `thunderfleet-agent measure link b` in the agent's pod on a (kubectl exec)"
    )
    untested = "the agents have not tested an all-reduce over RDMA on this cable"
    since = f"{untested} since it changed at 2026-03-01 12:00:01 UTC"
    assert measured((37_500, 38_000), changed="2026-03-01T12:00:01Z") == ("unknown", f"{since}: {to_do}")
    assert measured((37_500, 38_000), changed="2026-03-01T12:00:00Z")[0] == "ok"
    assert measured((37_500,))[0] == "unknown", "one direction only"
    assert measured(()) == ("unknown", f"{untested}: {to_do}")


def test_a_cable_that_works() -> None:
    answers = {"socket": answer("socket", rttMicroseconds=40), "rdma": answer("rdma", allSumMicroseconds=80)}
    found = checks(Tried(answers=answers))
    assert {name: state for name, (state, _) in found.items()} == {"dial": "ok", "pair": "ok", "all-reduce": "ok"}
    assert "RDMA" in found["pair"][1] and "80 µs" in found["all-reduce"][1] and "40 µs" in found["dial"][1]
    ring = checks(Tried(MeasurementTransport.RING, answers), usable="False")
    assert "TCP" in ring["pair"][1]


@pytest.mark.parametrize(
    ("socket", "rdma", "states"),
    [
        ({"error": "not measured: timed out"}, {}, {"dial": "failure", "pair": "ok", "all-reduce": "ok"}),
        ({}, {"error": "not measured: gone"}, {"dial": "ok", "pair": "failure", "all-reduce": "unknown"}),
        (
            {},
            {"error": "not measured: a wrong sum", "wrongSum": True},
            {"dial": "ok", "pair": "ok", "all-reduce": "failure"},
        ),
        (
            {"error": "not measured: in use", "refused": True},
            {"error": "not measured: in use", "refused": True},
            {"dial": "unknown", "pair": "unknown", "all-reduce": "unknown"},
        ),
    ],
)
def test_what_fails_is_named_where_it_fails(socket: Json, rdma: Json, states: dict[str, str]) -> None:
    found = checks(Tried(answers={"socket": answer("socket", **socket), "rdma": answer("rdma", **rdma)}))
    assert {name: state for name, (state, _) in found.items()} == states
    assert not any("not measured: " in finding for name, (_, finding) in found.items() if name != "all-reduce")


def test_a_cable_without_rdma_has_no_group() -> None:
    found = checks(Tried(answers={"socket": answer("socket", rttMicroseconds=9)}), usable="False")
    assert list(found) == ["dial"]


@pytest.mark.parametrize(
    ("seen", "state", "says"),
    [
        (Look(False), "failure", "does not listen on 127.0.0.1:6444"),
        (Look(True, unreadable="x: Permission denied"), "unknown", "run this with sudo"),
        (Look(True), "failure", "has no API server in its list"),
        (Look(True, (), ("10.0.0.1:6443",)), "failure", "reaches none of the API servers in its list (10.0.0.1:6443)"),
        (Look(True, ("10.0.0.2:6443",), ("10.0.0.1:6443",)), "warning", "does not reach 10.0.0.1:6443"),
        (Look(True, ("10.0.0.2:6443",)), "ok", "reaches every API server"),
    ],
)
def test_the_balancer_of_this_mac(seen: Look, state: str, says: str) -> None:
    check = api_servers(seen)
    assert check.state.value == state and says in check.finding
