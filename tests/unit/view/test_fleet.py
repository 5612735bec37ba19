"""What the page shows, from the objects of a cluster, one change at a time."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_crds.vocabulary import GroupPhase
from thunderfleet_lib.kube.names import key_of
from thunderfleet_view.details import details
from thunderfleet_view.health import FAILED, Health, of_condition
from thunderfleet_view.live.fleet import Fleet, Kind

from tests.support.page.fleetpage import cable, cable_name, conditions, fleet, model, node, profile

LINK = cable_name("studio-1", 1, "studio-2", 1)


def built(count: int = 2, size: int = 2) -> Fleet:
    found = Fleet()
    for kind, items in fleet(count, size, idle=0).items():
        for item in items:
            metadata = item["metadata"]
            found.put(
                kind, f"{metadata['namespace']}/{metadata['name']}" if "namespace" in metadata else metadata["name"], item
            )
    return found


def test_macs_cables_and_models_of_a_group() -> None:
    found = built()
    assert set(found.entities) == {"mac/studio-1", "mac/studio-2", f"cable/{LINK}", "model/default/model-0"}
    mac = found.entity("mac/studio-1")
    assert mac is not None and mac["ranks"] == [{"group": "default/model-0-0", "rank": 0, "state": "Serving"}]
    assert (mac["health"], mac["chip"], mac["gpuReserved"]) == (Health.GOOD, "M3 Ultra", 70 << 30)
    wire = found.entity(f"cable/{LINK}")
    assert wire is not None and wire["users"] == ["default/model-0-0"]
    assert (wire["ends"], wire["rdma"], wire["gbps"]) == ([["studio-1", 1], ["studio-2", 1]], True, "38.4/37.9")
    shown = found.entity("model/default/model-0")
    assert shown is not None and (shown["serves"], shown["health"], shown["groups"][0]["macs"]) == (
        True,
        Health.GOOD,
        ["studio-1", "studio-2"],
    )


def test_a_change_concerns_what_the_object_names_before_and_after() -> None:
    found = built(4, 2)
    moved = model("model-0", ["studio-3", "studio-4"], "nobody/tiny")
    expected = {"model/default/model-0", *(f"mac/studio-{number}" for number in (1, 2, 3, 4))}
    assert found.put(Kind.DEPLOYMENTS, "default/model-0", moved) == expected
    mac = found.entity("mac/studio-1")
    assert mac is not None and mac["ranks"] == [] and mac["health"] == Health.IDLE
    assert found.put(Kind.PROFILES, "studio-1", profile("studio-1", "Apple M3 Ultra", 512)) == set(), "the other end uses it"
    assert found.put(Kind.PROFILES, "studio-2", profile("studio-2", "Apple M3 Ultra", 512)) == {f"cable/{LINK}"}
    assert found.put(Kind.DEPLOYMENTS, "default/model-0", copy.deepcopy(moved)) == set(), "the same again is no change"


def test_a_pulled_cable_is_bad_and_says_why() -> None:
    found = built()
    pulled = cable("studio-1", 1, "studio-2", 1, "False", message="port 1 of studio-1 is down")
    assert found.put(Kind.LINKS, LINK, pulled) == {f"cable/{LINK}"}
    shown = found.entity(f"cable/{LINK}")
    assert shown is not None and (shown["health"], shown["problem"]) == (Health.BAD, "PortDown: port 1 of studio-1 is down")


def test_a_mac_whose_programs_are_silent_is_doubtful_and_says_why() -> None:
    found = built()
    silent = {"studio-1": "the agent does not work", "nobody": "the agent does not work"}
    assert found.silence(silent) == {"mac/studio-1"}
    mac = found.entity("mac/studio-1")
    assert mac is not None and (mac["health"], mac["problem"]) == (Health.DOUBTFUL, "the agent does not work")
    assert found.silence(dict(silent)) == set(), "the same again is no change"
    lost = node("studio-1")
    lost["status"]["conditions"] = conditions(Ready=("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status."))
    found.put(Kind.NODES, "studio-1", lost)
    mac = found.entity("mac/studio-1")
    assert mac is not None and mac["health"] == Health.BAD and mac["problem"].startswith("NotReady"), "its Node says more"
    found.put(Kind.NODES, "studio-1", node("studio-1"))
    assert found.silence({}) == {"mac/studio-1"}
    mac = found.entity("mac/studio-1")
    assert mac is not None and (mac["health"], mac["problem"]) == (Health.GOOD, "")


def test_a_cable_that_the_operator_has_not_seen_yet_is_not_bad() -> None:
    fresh = cable("studio-1", 1, "studio-2", 1)
    fresh["status"] = {}
    found = built()
    found.put(Kind.LINKS, LINK, fresh)
    shown = found.entity(f"cable/{LINK}")
    assert shown is not None and shown["health"] == Health.DOUBTFUL


def test_loading_and_copying_show_their_progress() -> None:
    found = built()
    copies = [
        {"node": "studio-1", "phase": "Copying", "bytes": 100, "bytesDone": 40, "bytesPerSecond": 10, "secondsLeft": 6},
        {"node": "studio-2", "phase": "Complete", "bytes": 100, "bytesDone": 100},
        {"node": "studio-3", "phase": "Part", "layers": "0-3", "bytes": 50, "bytesDone": 50},
    ]
    loading = model("model-0", ["studio-1", "studio-2"], "nobody/tiny", "Loading", "rank 1 loads", copies=copies)
    found.put(Kind.DEPLOYMENTS, "default/model-0", loading)
    shown = found.entity("model/default/model-0")
    assert shown is not None and shown["health"] == Health.DOUBTFUL and not shown["serves"]
    assert (shown["groups"][0]["loaded"], shown["groups"][0]["total"]) == (52 << 30, 128 << 30)
    assert [(one["mac"], one["done"], one["bytes"], one["left"]) for one in shown["copies"]] == [("studio-1", 40, 100, 6)]


def test_a_model_is_green_while_it_serves_and_has_groups_to_serve() -> None:
    found = built()
    serving = found.objects[Kind.DEPLOYMENTS]["default/model-0"]
    for spec, health, wanted in (
        ({"replicas": 1}, Health.GOOD, 1),
        ({"replicas": 0}, Health.IDLE, 0),
        ({"suspend": True}, Health.IDLE, 0),
    ):
        found.put(Kind.DEPLOYMENTS, "default/model-0", {**serving, "spec": {**serving["spec"], **spec}})
        shown = found.entity("model/default/model-0")
        assert shown is not None and (shown["health"], shown["wanted"]) == (health, wanted)


def test_a_group_without_a_state_is_pending() -> None:
    found = built()
    before = found.entity("model/default/model-0")
    assert before is not None and (before["groups"][0]["state"], before["ready"]) == ("Ready", 1)
    new = copy.deepcopy(found.objects[Kind.DEPLOYMENTS]["default/model-0"])
    del new["status"]["groups"][0]["state"]
    found.put(Kind.DEPLOYMENTS, "default/model-0", new)
    shown = found.entity("model/default/model-0")
    assert shown is not None and (shown["groups"][0]["state"], shown["ready"]) == ("Pending", 0)


def test_a_model_without_a_place_and_a_lost_mac_are_bad() -> None:
    found = built()
    found.put(Kind.DEPLOYMENTS, "default/big", model("big", [], "nobody/big", "Pending", "no Mac has room"))
    found.put(Kind.NODES, "studio-2", node("studio-2", "Unknown", "Kubelet stopped posting node status."))
    big, mac = found.entity("model/default/big"), found.entity("mac/studio-2")
    assert big is not None and (big["health"], big["problem"]) == (Health.BAD, "Placed: no Mac has room")
    assert mac is not None and mac["health"] == Health.BAD and "check that the Mac is on" in mac["problem"]


@pytest.mark.parametrize(("reason", "health"), [("Quantizing", "doubtful"), ("Resolving", "doubtful"), ("NotFound", "bad")])
def test_a_model_that_is_being_made_is_not_bad(reason: str, health: str) -> None:
    found, big = built(), model("big", [], "nobody/big", "Pending", "see condition ModelResolved")
    reasons = {"ModelResolved": reason, "Placed": "ModelNotResolved"}
    for one in big["status"]["conditions"]:
        if one["type"] in reasons:
            one |= {"status": "False", "reason": reasons[one["type"]]}
    found.put(Kind.DEPLOYMENTS, "default/big", big)
    shown = found.entity("model/default/big")
    assert shown is not None and shown["health"] == health


def health_of(kind: str, status: str, reason: str) -> Health:
    return of_condition({"type": kind, "status": status, "reason": reason})


@pytest.mark.parametrize(
    ("kind", "status", "reason"),
    [
        *(("Ready", "False", phase) for phase in GroupPhase if phase not in FAILED),
        ("Ready", "False", "Fetching"),
        ("Ready", "False", "PartlyReady"),
        ("Ready", "False", "Asleep"),
        ("Bootstrapped", "False", "NotFormed"),
        ("Bootstrapped", "False", "Suspended"),
        ("ModelResolved", "False", "Quantizing"),
        ("Placed", "False", "ModelNotResolved"),
        ("Placed", "False", "Pending"),
        ("Placed", "False", "NotYetObserved"),
        ("Verified", "Unknown", "NotVerified"),
        ("Benchmarked", "False", "NotMeasured"),
        ("BenchmarksFresh", "False", "InUse"),
        ("Reconciling", "True", "Progressing"),
        ("Reconciling", "False", "Ready"),
        ("Reconciling", "False", "ActionRequired"),
        ("Stalled", "False", "AsExpected"),
        ("Degraded", "False", "AsExpected"),
        ("RDMAUsable", "False", "BelowThunderbolt5"),
        ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
    ],
)
def test_work_in_progress_is_not_red(kind: str, status: str, reason: str) -> None:
    assert health_of(kind, status, reason) is not Health.BAD


@pytest.mark.parametrize(
    ("kind", "status", "reason"),
    [
        *(("Ready", "False", phase) for phase in sorted(FAILED)),
        ("Ready", "False", "NoRoom"),
        ("Ready", "False", "SomethingNew"),
        ("Ready", "Unknown", "NodeStatusUnknown"),
        ("ModelResolved", "False", "ModelNotFound"),
        ("ModelResolved", "False", "Gated"),
        ("Placed", "False", "NotConnected"),
        ("Verified", "False", "KernelWrong"),
        ("BenchmarksFresh", "False", "BenchmarkFailed"),
        ("Stalled", "True", "GaveUp"),
        ("Degraded", "True", "PeerLost"),
        ("Quarantined", "True", "StackHung"),
        ("RDMAReady", "False", "StackHung"),
        ("ClockSynchronized", "False", "ClockWrong"),
        ("Connected", "False", "Unplugged"),
        ("Connected", "Unknown", "NodesNotReady"),
        ("DiskPressure", "True", "KubeletHasDiskPressure"),
    ],
)
def test_a_fault_is_red(kind: str, status: str, reason: str) -> None:
    assert health_of(kind, status, reason) is Health.BAD


def test_a_model_that_loads_has_nothing_red_in_its_details() -> None:
    found = built()
    loading = model("model-0", ["studio-1", "studio-2"], "nobody/tiny", "Loading", "rank 1 loads")
    loading["status"]["conditions"] += conditions(
        Reconciling=("True", "Progressing", ""), Stalled=("False", "AsExpected", ""), Degraded=("False", "AsExpected", "")
    )
    found.put(Kind.DEPLOYMENTS, "default/model-0", loading)
    operator = {"metadata": {"name": "operator"}, "status": {"conditions": conditions(Ready=("True", "", ""))}}
    shown = details(found, "model/default/model-0", (), [operator])
    assert shown is not None and [one["type"] for one in shown["conditions"] if one["health"] == "bad"] == []
    assert "problem" not in {step["state"] for step in shown["why"]["steps"]}
    assert (shown["why"]["cause"]["subject"], shown["why"]["cause"]["state"]) == ("group 0", "waiting")


def test_nodes_that_are_no_macs_are_not_shown() -> None:
    found, server = Fleet(), node("server")
    server["metadata"]["labels"]["kubernetes.io/os"] = "linux"
    assert found.put(Kind.NODES, "server", server) == set() and not found.entities


def test_long_and_odd_messages_are_short_and_plain() -> None:
    found = built()
    found.put(Kind.DEPLOYMENTS, "default/odd", model("odd", [], "nobody/odd", "Pending", "\x1b[31m" + "x" * 5000))
    shown = found.entity("model/default/odd")
    assert shown is not None and len(shown["problem"]) == 400 and "\x1b" not in shown["problem"]


def test_details_have_conditions_and_the_way_to_the_cause() -> None:
    found = built()
    found.put(Kind.LINKS, LINK, cable("studio-1", 1, "studio-2", 1, "False", message="port 1 is down"))
    shown = details(found, f"cable/{LINK}", (), None)
    assert shown is not None and shown["why"] is None
    assert shown["conditions"][0]["message"] == "port 1 is down"
    loading = model("model-0", ["studio-1", "studio-2"], "nobody/tiny", "BackingOff", "waits for its next restart")
    found.put(Kind.DEPLOYMENTS, "default/model-0", loading)
    why = details(found, "model/default/model-0", (), None)
    assert why is not None and "port 1 is down" in why["why"]["cause"]["text"]
    both = details(found, "mac/studio-1", (), None)
    assert both is not None and {one["type"] for one in both["conditions"]} == {"Ready", "InventoryComplete", "BridgeFree"}
    assert [details(found, wrong, (), None) for wrong in ("mac/nobody", "pod/x", "model", "")] == [None] * 4


@given(st.lists(st.tuples(st.sampled_from(["put", "drop"]), st.integers(0, 40)), max_size=60))
def test_in_any_order_the_end_is_that_of_the_objects(steps: list[tuple[str, int]]) -> None:
    objects = [(kind, item) for kind, items in fleet(8, 4, idle=0).items() for item in items]
    found, held = Fleet(), dict[tuple[Kind, str], dict[str, object]]()
    for step, number in steps:
        kind, item = objects[number % len(objects)]
        key = key_of(item)
        if step == "put":
            held[kind, key] = item
        else:
            held.pop((kind, key), None)
        before = dict(found.entities)
        changed = found.put(kind, key, item if step == "put" else None)
        assert {one for one in before.keys() | found.entities.keys() if before.get(one) != found.entities.get(one)} == changed
    fresh = Fleet()
    for (kind, key), item in held.items():
        fresh.put(kind, key, item)
    assert fresh.entities == found.entities
