"""Memory, ports and cables that pods and plans use on each Mac, and the fleet without them."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_crds.names import ANNOTATION_SIGNATURE
from thunderfleet_crds.vocabulary import Backend
from thunderfleet_operator.decide.placing.account import Account
from thunderfleet_operator.observe.fleet.builder import occupied
from thunderfleet_operator.observe.fleet.usage import Taken, Usage
from thunderfleet_operator.observe.index import Index
from thunderfleet_operator.observe.objects.plans import Epoch, accepted, group_views, newest_epochs
from thunderfleet_operator.observe.objects.plans import read_epoch as read_signed
from thunderfleet_operator.observe.objects.pods import Pod, RankPorts, annotated_ports, pod_memory, pod_node, pod_ports, proven
from thunderfleet_operator.observe.objects.pods import read_pod as read_signed_pod
from thunderfleet_operator.observe.objects.proofs import TRUSTING, Finding, Proof
from thunderfleet_operator.placement import Cable, End, Fleet, Mac
from thunderfleet_operator.watch.cache import CONFIGMAPS, DEPLOYMENTS, PODS

from tests.unit.operator.values import plan, pod, view
from tests.unit.operator.world import World

FLEET = Fleet(
    [Mac("a", "10.0.0.1", 1000, 1000), Mac("b", "10.0.0.2", 1000, 1000), Mac("c", "10.0.0.3", 1000, 1000)],
    [
        Cable("a--b", End("a", "169.254.0.1", "rdma_en2"), End("b", "169.254.0.2", "rdma_en3")),
        Cable("b--c", End("b", "169.254.9.1", "rdma_en4"), End("c", "169.254.9.2", "rdma_en5")),
    ],
)
OWN = ("uid", 0)
PORTS = frozenset((20000, 20001, 21000, 21001))


def jaccl(*, ring: bool = False, nodes: tuple[str, ...] = ("a", "b")) -> Plan:
    made = plan(nodes=nodes)
    size = len(nodes)
    ranks = tuple(
        rank.model_copy(
            update={"ring_address": None, "devices": tuple(f"dev{i}" if i != rank.rank else None for i in range(size))}
        )
        for rank in made.ranks
    )
    return made.model_copy(update={"backend": Backend.JACCL, "jaccl_ring": ring, "ranks": tuple(ranks)})


def test_a_plan_takes_what_its_pods_will() -> None:
    taken = Usage({}, {OWN: plan()}).taken()
    assert taken.memory == {"a": 100, "b": 100} and taken.ports == {"a": PORTS, "b": PORTS}
    assert taken.groups == {"a", "b"} and taken.addresses == {("a", "169.254.0.1"), ("b", "169.254.0.2")}
    assert Usage({}, {OWN: plan()}).without(OWN).taken() == Taken()


def test_a_pod_that_is_bound_to_no_mac_takes_nothing_by_itself() -> None:
    huge = pod(0, owner=None, memory_bytes=2**50, ports=frozenset({20000}), scheduled=False)
    assert Usage({"ns/huge": huge}).taken() == Taken()
    waits = {"ns/md-0-e1-0": pod(0, memory_bytes=70, scheduled=False)}
    assert Usage(waits, {OWN: plan()}).taken() == Usage({}, {OWN: plan()}).taken(), "its plan holds the room"


def test_a_pod_of_somebody_else_with_the_name_of_a_rank_takes_no_room_of_the_plan() -> None:
    taken = Usage({"ns/md-0-e1-0": pod(0, owner=None, memory_bytes=1)}, {OWN: plan()}).taken()
    assert taken.memory == {"a": 101, "b": 100}


def test_a_plan_that_does_not_count_takes_what_its_running_pods_hold() -> None:
    assert Usage({}, {}, {OWN: plan()}).taken() == Taken()
    runs = {"ns/md-0-e1-0": pod(0, memory_bytes=70), "ns/md-0-e1-1": pod(1, memory_bytes=70, scheduled=False)}
    taken = Usage(runs, {}, {OWN: plan()}).taken()
    assert taken.memory == {"a": 70} and taken.addresses == {("a", "169.254.0.1")}
    elsewhere = {"ns/md-0-e1-0": pod(0, node="c")}
    assert Usage(elsewhere, {}, {OWN: plan()}).taken().addresses == frozenset()
    assert Usage(runs, {}, {OWN: plan()}).placed(OWN, plan(2)).held == {}


def test_a_pod_that_exists_counts_in_place_of_its_plan() -> None:
    held = {"ns/md-0-e1-0": pod(0, memory_bytes=70, ports=frozenset({20000}))}
    taken = Usage(held, {OWN: plan()}).taken()
    assert taken.memory == {"a": 70, "b": 100} and taken.ports == {"a": frozenset({20000}), "b": PORTS}
    assert Usage(held, {OWN: plan()}).without(OWN).taken() == Taken()
    for other in (("uid", 1), ("other", 0)):
        assert Usage(held, {OWN: plan()}).without(other).taken() == taken


@pytest.mark.parametrize("more", [{"phase": "Succeeded"}, {"phase": "Failed"}, {"node": None}])
def test_a_pod_that_has_ended_or_has_no_node_takes_nothing(more: dict[str, Any]) -> None:
    assert Usage({"ns/x": pod(0, memory_bytes=70, **more)}).taken() == Taken()


def test_pods_of_others_take_memory_and_ports_and_are_no_group() -> None:
    agents = {f"ns/{i}": pod(0, owner=None, memory_bytes=30, ports=frozenset({9000 + i})) for i in (0, 1)}
    assert Usage(agents).taken() == Taken({"a": 60}, {"a": frozenset({9000, 9001})}, pods={"a": 2})


def test_a_mac_that_runs_as_many_pods_as_it_may_gets_no_rank() -> None:
    """Any user can bind small pods to the best Macs, and the scheduler binds no more then."""
    fleet = FLEET.changed([replace(FLEET.macs["a"], max_pods=3)])
    others = {f"other/{i}": pod(0, owner=None, memory_bytes=1) for i in range(3)}
    one, two, three = (Usage(dict(list(others.items())[:count])).taken() for count in (1, 2, 3))
    found = fleet
    for before, after, full in ((Taken(), one, False), (one, two, False), (two, three, True), (three, two, False)):
        found = occupied(found, before, after)
        assert [found.macs[name].full for name in "abc"] == [full, False, False], "those that say nothing have no limit"
    taken = Usage({}, {("uid", 0): plan(), ("uid", 1): plan(2), ("uid", 2): plan(3)}).taken()
    assert taken.pods == {"a": 3, "b": 3} and occupied(fleet, Taken(), taken).macs["a"].full, "pods that are about to come"
    left = Usage({}, {OWN: plan(), ("uid", 1): plan(2), ("uid", 2): plan(3)}).without(OWN).taken()
    assert not occupied(fleet, Taken(), left).macs["a"].full, "a group makes room for itself"


@pytest.mark.parametrize(("ring", "nodes", "each"), [(False, ("a", "b"), 1), (True, ("a", "b"), 2), (True, ("a", "b", "c"), 1)])
def test_queue_pairs_by_device(ring: bool, nodes: tuple[str, ...], each: int) -> None:
    found = Usage({}, {OWN: jaccl(ring=ring, nodes=nodes)}).taken().queue_pairs
    assert set(found.values()) == {each} and ("a", "dev1") in found and ("a", "dev0") not in found
    twice = Usage({}, {OWN: jaccl(ring=ring, nodes=nodes), ("uid", 1): jaccl(ring=ring, nodes=nodes)}).taken().queue_pairs
    assert set(twice.values()) == {2 * each}


def test_groups_come_and_go() -> None:
    usage = Usage({"ns/md-0-e1-0": pod(0, memory_bytes=70)}, {("uid", 1): plan(3, nodes=("c",))})
    placed = usage.placed(OWN, plan(2))
    assert placed.taken().memory == {"a": 170, "b": 100, "c": 100}, "the old pod stays until it ends"
    assert placed.without(OWN).taken().memory == {"c": 100}
    assert Taken().with_ports("a", frozenset({5})).with_ports("a", frozenset({6})).ports == {"a": frozenset({5, 6})}


def _some_usage(chance: Random) -> Usage:
    """Pods and plans of a few groups on three Macs. Pods are bound or not, elsewhere, ended, of others; not all plans count."""
    pods, plans = dict[str, Pod](), dict[int, dict[tuple[str | None, int], Plan]]({0: {}, 1: {}})
    for group in range(3):
        nodes = tuple(chance.sample("abc", 2))
        made = jaccl(nodes=nodes) if chance.random() < 0.5 else plan(nodes=nodes)
        name = f"md-{group}-e1"
        ranks = tuple(rank.model_copy(update={"pod": f"{name}-{rank.rank}"}) for rank in made.ranks)
        if (where := chance.randrange(3)) < 2:
            plans[where]["uid", group] = made.model_copy(update={"name": name, "index": group, "ranks": ranks})
        for rank in ranks if chance.random() < 0.8 else ():
            about: dict[str, Any] = {
                "node": chance.choice([rank.node, rank.node, "c", None]),
                "owner": chance.choice(["uid", "uid", None]),
                "phase": chance.choice(["Running", "Running", "Failed"]),
                "scheduled": chance.random() < 0.7,
            }
            pods[f"ns/{name}-{rank.rank}"] = pod(rank.rank, group=group, memory_bytes=7, **about)
    return Usage(pods, plans[0], plans[1])


@pytest.mark.parametrize("seed", range(60))
def test_what_is_taken_after_changes_is_what_is_taken_from_scratch(seed: int) -> None:
    chance = Random(seed)
    past, taken = Usage(), Taken()
    for _ in range(6):
        new = _some_usage(chance)
        # Some of the earlier objects stay, as the same values.
        kept = {key: value for key, value in past.pods.items() if key in new.pods and chance.random() < 0.6}
        now = Usage({**new.pods, **kept}, {**new.plans, **dict(list(past.plans.items())[:1])}, new.held)
        taken = now.taken_after(past, taken)
        assert taken == now.taken()
        group = ("uid", chance.randrange(3))
        bare = now.without(group)
        assert bare.taken_after(now, taken) == bare.taken() and bare.without(group) is bare
        past = now


def test_only_macs_where_something_has_changed_are_summed_up_again() -> None:
    """A fleet has thousands of pods, and each round follows a change of a few."""
    others = {f"ns/{i}": pod(0, owner=None, node="c", memory_bytes=30) for i in range(3)}
    before = Usage(others, {OWN: plan()})
    wrong = replace(before.taken(), memory={"a": 1, "b": 2, "c": 3})
    after = replace(before, plans={OWN: plan(2)})
    assert after.taken_after(before, wrong).memory == {"a": 100, "b": 100, "c": 3}
    assert before.taken_after(before, wrong) is wrong


def test_a_fleet_with_something_taken_and_back() -> None:
    taken = Taken({"a": 300, "b": 2000}, {}, frozenset("a"), frozenset({("a", "169.254.0.1")}), {("b", "rdma_en4"): 3})
    used = occupied(FLEET, Taken(), taken)
    assert [used.macs[name].free_bytes for name in "abc"] == [700, 0, 1000]
    assert [used.macs[name].in_use for name in "abc"] == [True, False, False]
    assert [used.cables[name].in_use for name in ("a--b", "b--c")] == [True, True]
    assert (used.cables["b--c"].a.queue_pairs, used.cables["b--c"].b.queue_pairs, used.cables["a--b"].b.queue_pairs) == (
        7,
        10,
        10,
    )
    back = occupied(used, taken, Taken())
    assert back.macs == FLEET.macs and back.cables == FLEET.cables
    assert occupied(FLEET, Taken(), Taken()) is FLEET and used.macs["c"] is FLEET.macs["c"]
    far = occupied(FLEET, Taken(), Taken({"gone": 5}, {}, frozenset({"gone"}), queue_pairs={("b", "rdma_en4"): 99}))
    assert far.macs == FLEET.macs and far.cables["b--c"].a.queue_pairs == 0


def test_the_account_of_a_round() -> None:
    account = Account(FLEET, Usage(), Taken()).placed(OWN, plan())
    assert [account.fleet.macs[name].free_bytes for name in "abc"] == [900, 900, 1000]
    assert account.fleet.cables["a--b"].in_use and not account.fleet.cables["b--c"].in_use
    bare, taken = account.without(OWN)
    assert bare.macs == FLEET.macs and bare.cables == FLEET.cables and taken == Taken()
    assert account.quarantined("c", "StackHung").fleet.macs["c"].quarantine == "StackHung"
    assert account.quarantined("gone", "StackHung") is account


# --- from objects ---


def read_epoch(item: dict[str, Any]) -> Epoch:
    found = read_signed(item, TRUSTING)
    assert found is not None
    return found


def read_pod(item: dict[str, Any]) -> Pod:
    return read_signed_pod(item, TRUSTING)


def child(number: int, *, uid: str = "uid", group: int = 0, **more: Any) -> dict[str, Any]:
    labels = {"thunderfleet.io/deployment": "md", "thunderfleet.io/group": str(group), "thunderfleet.io/epoch": str(number)}
    owner = {"kind": "ModelDeployment", "name": "md", "uid": uid, "controller": True}
    return {"name": f"md-{group}-e{number}", "namespace": "ns", "labels": labels, "ownerReferences": [owner], **more}


def config_map(number: int, **more: Any) -> dict[str, Any]:
    text = plan(number, uid=more.get("uid", "uid")).model_dump_json(by_alias=True)
    return {"metadata": child(number, **more), "data": {"plan.json": text}}


def test_the_newest_plan_that_is_not_being_deleted_counts() -> None:
    first, second = read_epoch(config_map(1)), read_epoch(config_map(2))
    assert newest_epochs([second, first]) == newest_epochs([first, second]) == {OWN: second}
    ending = read_epoch(config_map(2, deletionTimestamp="2026-01-01T00:00:00Z"))
    assert newest_epochs([first, ending]) == {}, "an older plan does not come back"


def test_what_is_no_plan_of_its_own_config_map() -> None:
    text = plan(3).model_dump_json(by_alias=True)
    other_pods = plan(3).model_copy(update={"ranks": plan(4).ranks}).model_dump_json(by_alias=True)
    for data in ({}, None, {"plan.json": "{"}, {"plan.json": text + " " * 2**18}, {"plan.json": other_pods}):
        assert read_signed({"metadata": child(3), "data": data}, TRUSTING) is None
    for elsewhere in ({"name": "md-0-e4"}, {"namespace": "kube-system"}):
        assert read_signed({"metadata": {**child(3), **elsewhere}, "data": {"plan.json": text}}, TRUSTING) is None
    assert read_signed({"metadata": child(3), "data": {"plan.json": text}}, TRUSTING) is not None


def test_groups_are_made_of_their_own_children_and_count_the_names_of_others() -> None:
    body = {"metadata": {"name": "md", "namespace": "ns", "uid": "uid"}, "spec": {"model": {"repository": "x"}, "replicas": 2}}
    deployment = ModelDeployment.load(body)
    read = [read_epoch(config_map(number)) for number in (2, 1)] + [read_epoch(config_map(9, uid="other"))]
    epochs = [epoch for epoch in (accepted(one, deployment) for one in read) if epoch is not None]
    pods = [
        read_pod({"metadata": child(1, group=3)}),
        replace(pod(1), epoch=1),
        pod(0, epoch=2),
        pod(0, owner="other", group=1, epoch=5),
    ]
    found = group_views(deployment, epochs, pods)
    assert list(found) == [0, 1, 3]
    assert found[0].epoch is epochs[0] and found[0].past == (epochs[1],) and found[0].last_epoch == 9
    assert [one.epoch for one in found[0].pods] == [2] and [one.epoch for one in found[0].old_pods] == [1]
    assert found[1].epoch is None and found[1].last_epoch == 5 and found[1].all_pods == ()
    assert found[3].last_epoch == 1 and len(found[3].old_pods) == 1
    assert found[0].nodes == {"a", "b"} and found[0].current == ("a", "b") and found[1].current == ()


def test_a_group_that_is_needed_again_goes_on_with_the_last_placement_that_runs() -> None:
    """Its status is gone, and the ModelDeployment has counted its placements: all of them are earlier ones."""
    body = {"metadata": {"name": "md", "namespace": "ns", "uid": "uid"}, "spec": {"model": {"repository": "x"}, "replicas": 1}}
    deployment = ModelDeployment.load({**body, "status": {"highestEpoch": 2}})
    first, second = (accepted(read_epoch(config_map(number)), deployment) for number in (1, 2))
    assert first is not None and second is not None and not (first.current or second.current)
    runs = [pod(rank, epoch=2) for rank in (0, 1)]
    assert group_views(deployment, [first, second], runs)[0].epoch is second
    assert group_views(deployment, [first, second], runs[:1])[0].epoch is None
    assert group_views(deployment, [first, second], [pod(rank, epoch=1) for rank in (0, 1)])[0].epoch is None


def test_a_status_without_a_digest_records_no_plan_whose_signature_is_wrong() -> None:
    """An older version recorded the ranks only. They suffice for a plan that was made before plans were signed."""
    made = read_epoch(config_map(1))
    ranks = [
        rank.model_dump(by_alias=True, include={"rank", "node", "pod", "address", "memory_bytes"}) for rank in made.plan.ranks
    ]
    group = {"index": 0, "epoch": 1, "state": "Ready", "ranks": [{**rank, "state": "Serving"} for rank in ranks]}
    body = {"metadata": {"name": "md", "namespace": "ns", "uid": "uid"}, "spec": {"model": {"repository": "x"}}}
    deployment = ModelDeployment.load({**body, "status": {"groups": [group]}})
    found = {proof: accepted(replace(made, finding=Finding(proof)), deployment) is not None for proof in Proof}
    assert found == {proof: proof in (Proof.NONE, Proof.VALID) for proof in Proof}


def test_a_group_keeps_the_ports_of_its_plan_or_else_of_its_pods() -> None:
    assert view().kept_ports["a"] == RankPorts(20000, 20001, (21000, 21001))
    lost = replace(view(pod(0, kept_ports=RankPorts(1, 2)), pod(1)), epoch=None)
    assert lost.kept_ports == {"a": RankPorts(1, 2)} and RankPorts(1, 2, (3,)).all == {1, 2, 3}


def test_without_a_placement_all_pods_are_old() -> None:
    lost = replace(view(), epoch=None, last_epoch=-1)
    after = lost.with_pods([pod(0, epoch=number) for number in (2, 1, 0)])
    assert (after.epoch, after.last_epoch, after.pods) == (None, -1, ())
    assert [one.epoch for one in after.old_pods] == [0, 1, 2]


def test_the_epoch_after_the_writes_is_the_newest() -> None:
    epoch = read_epoch(config_map(2))
    after = view().with_pods([pod(0), pod(0, epoch=2)], epoch)
    assert (after.epoch, after.last_epoch, [one.number for one in after.past]) == (epoch, 2, [1])
    assert [one.epoch for one in after.pods] == [2] and [one.epoch for one in after.old_pods] == [1]
    assert view().with_pods([pod(0)]).past == ()


# --- pods ---


def test_a_pod_is_where_it_is_bound_or_where_its_affinity_says() -> None:
    def affinity(key: str, *values: str) -> dict[str, Any]:
        term = {"matchFields": [{"key": key, "operator": "In", "values": list(values)}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        return {"spec": {"affinity": {"nodeAffinity": required}}}

    assert pod_node(affinity("metadata.name", "a")) == "a"
    assert pod_node(affinity("metadata.name", "a", "b")) is None and pod_node(affinity("metadata.uid", "a")) is None
    assert pod_node({"spec": {"nodeName": "b", **affinity("metadata.name", "a")["spec"]}}) == "b" and pod_node({}) is None


def test_the_memory_that_the_scheduler_counts() -> None:
    def container(requests: str | None = None, limits: str | None = None, **more: Any) -> dict[str, Any]:
        sizes = {"requests": {"memory": requests}, "limits": {"memory": limits}}
        return {"resources": {kind: value for kind, value in sizes.items() if value["memory"]}, **more}

    both = [container("1Ki"), container(limits="2Ki")]
    assert pod_memory({"spec": {"containers": both}}) == 3072 and pod_memory({"spec": {"containers": [container()]}}) == 0
    sidecar, first = container("512", restartPolicy="Always"), container("4Ki")
    assert pod_memory({"spec": {"containers": both, "initContainers": [sidecar, first]}}) == 4096 + 512
    assert pod_memory({"spec": {"containers": both, "overhead": {"memory": "1"}}}) == 3073 and pod_memory({}) == 0


def test_the_ports_of_a_pod() -> None:
    ports = [{"containerPort": 80}, {"containerPort": 81, "hostPort": 8081}]
    spec = {"containers": [{"ports": ports}], "initContainers": [{"ports": [{"hostPort": 7}]}]}
    assert pod_ports({}) is pod_ports({"spec": {}}) == frozenset()
    assert pod_ports({"spec": spec}) == {8081, 7} and pod_ports({"spec": {**spec, "hostNetwork": True}}) == {80, 8081, 7}


def test_annotated_ports_and_what_stops_no_round() -> None:
    def annotated(text: str) -> dict[str, Any]:
        return {"metadata": {"name": "x", "annotations": {"thunderfleet.io/ports": text}}}

    good = annotated('{"gateway": 1, "control": 2, "ring": [3]}')
    assert annotated_ports(good) == read_pod(good).kept_ports == RankPorts(1, 2, (3,))
    assert annotated_ports({"metadata": {"name": "x"}}) is None
    for bad in ("{", '{"gateway": 1}', "[]", '{"gateway": "x", "control": 2}'):
        with pytest.raises((ValueError, KeyError, TypeError)):
            annotated_ports(annotated(bad))
        assert read_pod(annotated(bad)).kept_ports is None


def test_a_pod_without_labels_or_status() -> None:
    found = read_pod({"metadata": {"name": "x", "uid": "u"}})
    assert (found.rank, found.epoch, found.group, found.owner, found.node) == (-1, -1, -1, None, None)
    assert (found.phase, found.message, found.waiting, found.restarts, found.last_words) == ("Pending", "", None, 0, "")
    assert (found.memory_bytes, found.ports, found.kept_ports, found.terminating) == (0, frozenset(), None, None)
    assert not (found.scheduled or found.ready or found.running or found.crash_looping or found.evicted)
    assert (found.unschedulable_since, found.proof) == (None, Proof.NONE)


@pytest.mark.parametrize(
    ("uid", "listed", "is_ours"),
    [("uid", {"name": "p", "uid": "pod-uid"}, True), ("uid", {"name": "p", "uid": "other"}, False), ("of another", {}, False)],
)
def test_an_unsigned_pod_that_status_lists_as_terminating_is_the_operators(
    uid: str, listed: dict[str, str], is_ours: bool
) -> None:
    found = replace(pod(0), proof=Proof.UNKNOWN_KEY, name="p", uid="pod-uid")
    metadata = {"name": "md", "namespace": "ns", "uid": uid}
    spec = {"model": {"repository": "org/tiny"}}
    status = {"terminatingPods": [listed or {"name": "p", "uid": "pod-uid"}]}
    deployment = ModelDeployment.load({"metadata": metadata, "spec": spec, "status": status})
    assert (proven(found, deployment).owner is not None) == is_ours


def test_what_a_pod_says_of_itself() -> None:
    looping = {"reason": "CrashLoopBackOff", "message": "back-off 10s"}
    status = {
        "phase": "Failed",
        "reason": "Evicted",
        "conditions": [{"type": "Ready", "status": "False"}, {"type": "DisruptionTarget", "status": "True"}],
        "containerStatuses": [
            {"restartCount": 2, "state": {"waiting": looping}},
            {"restartCount": 3, "state": {"running": {}}},
        ],
    }
    found = read_pod({"metadata": {"name": "x"}, "spec": {"nodeName": "a"}, "status": status})
    assert (found.phase, found.message, found.restarts) == ("Failed", "Evicted", 3)
    assert found.waiting == "CrashLoopBackOff: back-off 10s"
    assert (found.scheduled, found.running, found.crash_looping, found.evicted, found.ready) == (True, True, True, True, False)
    ends = {"state": {"terminated": {"message": " now "}}, "lastState": {"terminated": {"message": "before"}}}
    ended = read_pod({"metadata": {"name": "x"}, "status": {"containerStatuses": [ends]}})
    assert ended.last_words == "now"
    waits = read_pod(
        {"metadata": {"name": "x"}, "status": {"containerStatuses": [{"state": {"waiting": {"reason": "Pulling"}}}]}}
    )
    assert (waits.waiting, waits.crash_looping, waits.running) == ("Pulling", False, False)


TABLES = ("pods", "pods_of", "epochs", "epochs_of", "plans", "plans_on", "newest_epochs", "running_on", "usage", "taken")


async def test_a_status_that_says_the_same_about_plans_and_pods_leaves_their_tables(world: World) -> None:
    world.deploy()
    await world.serve()
    index = world.index
    before = {name: getattr(index, name) for name in TABLES}
    world.change(DEPLOYMENTS, "ns/md", lambda item: item["status"].update(observedGeneration=7))
    assert [name for name in TABLES if getattr(index, name) is not before[name]] == []

    # What a plan counts depends on the spec, and whose a plan is on the UID.
    world.edit(replicas=0)
    assert index.usage is not before["usage"] and not index.usage.plans and index.pods is before["pods"]
    world.change(DEPLOYMENTS, "ns/md", lambda item: item["metadata"].update(uid="another"))
    assert not index.plans and index.epochs is not before["epochs"]
    (pod, *_) = world.pods()
    world.remove(PODS, f"ns/{pod}")
    assert f"ns/{pod}" not in index.pods and len(index.pods) == len(before["pods"]) - 1
    (config_map,) = world.cache[CONFIGMAPS].items
    world.remove(CONFIGMAPS, config_map)
    assert not index.epochs and not index.epochs_of


async def test_tables_that_follow_changes_are_those_that_are_made_anew(world: World) -> None:
    """Only what has changed is read again, also after a change that makes an object somebody else's."""
    await world.serve_two_groups()
    index, (pod, *_) = world.index, world.pods()
    (config_map, *_) = world.cache[CONFIGMAPS].items
    uid = world.md.metadata.uid

    def forged(item: dict[str, Any]) -> None:
        item["metadata"]["annotations"][ANNOTATION_SIGNATURE] = "forged"

    changes: list[Callable[[], None]] = [
        lambda: world.change(PODS, f"ns/{pod}", lambda item: item["status"].update(phase="Failed")),
        lambda: world.change(DEPLOYMENTS, "ns/md", lambda item: item["metadata"].update(uid="another")),
        lambda: world.change(DEPLOYMENTS, "ns/md", lambda item: item["metadata"].update(uid=uid)),
        lambda: world.edit(replicas=1),
        lambda: world.change(CONFIGMAPS, config_map, forged),
        lambda: world.remove(PODS, f"ns/{pod}"),
        lambda: world.remove(CONFIGMAPS, config_map),
        lambda: world.remove(DEPLOYMENTS, "ns/md"),
    ]
    for number, change in enumerate(changes):
        change()
        anew = Index(world.cache, lambda: world.keys)
        for name in TABLES:
            assert getattr(index, name) == getattr(anew, name), f"{name} after change {number}"
