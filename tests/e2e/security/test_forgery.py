"""A tenant with `edit` in one namespace against the operator: look-alikes of its objects, names that are taken, a lost key.

And an upgrade from a version that signed nothing, which a forger could pretend.

Each forgery is sent with the tenant's own token, first where the admission policies refuse it, and again without the policies,
where it must be harmless.
"""

import base64
import copy
import functools
import json
import subprocess
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.names import ANNOTATION_PORTS
from thunderfleet_crds.names import ANNOTATION_SIGNATURE as SIGNATURE
from thunderfleet_localcluster.models import tinymodel
from thunderfleet_operator.act.keys import unsigned_group_keys
from thunderfleet_operator.act.operator_key import KEY_FIELD

from tests.support import yamltext
from tests.support.line import CHART, MANAGED, READY_SECONDS, SYSTEM, Deploy, Deployment, Line, condition, manifest
from tests.support.suite.tiers import quick
from tests.support.waiting import until

Json = dict[str, Any]

ONE = {"nodes": {"min": 1, "max": 1}}
KEY = "thunderfleet-operator-key"
OPERATOR = "deployment/thunderfleet-operator"
PROMPT, TOKENS = tinymodel.MESSAGES[0]["content"], 8
HUGE = 2**50
ROLE = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "model-deployments"},
    "rules": [{"apiGroups": ["thunderfleet.io"], "resources": ["modeldeployments", "modeldeployments/status"], "verbs": ["*"]}],
}


@pytest.fixture(scope="module")
def line(desk: Line) -> Line:
    return desk


@dataclass
class Tenant:
    """Somebody with `edit`, and all rights on ModelDeployments, in one namespace. ``kubeconfig`` has nothing but a token."""

    line: Line
    namespace: str
    kubeconfig: Path

    def kubectl(self, *arguments: str, text: str | None = None) -> "subprocess.CompletedProcess[str]":
        own = ("--kubeconfig", str(self.kubeconfig), "-n", self.namespace)
        return self.line.cluster.kubectl(*own, *arguments, text=text, check=False)

    def create(self, item: Json) -> "subprocess.CompletedProcess[str]":
        return self.kubectl("create", "-f", "-", text=yamltext.dump(item))

    def make(self, *items: Json) -> None:
        self.must("create", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))

    def must(self, *arguments: str, text: str | None = None) -> str:
        done = self.kubectl(*arguments, text=text)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def ending(line: Line) -> Iterator[list[str]]:
    """Namespaces that were deleted. Each ends while the next tests run; at the end, none must be left."""
    names: list[str] = []
    yield names
    for name in names:
        until(
            lambda name=name: line.api.get(f"/api/v1/namespaces/{name}") is None,  # type: ignore[misc]
            f"namespace {name} is gone",
            90,
            describe=lambda name=name: line.kubectl("get", "namespace", name, "-o", "yaml"),  # type: ignore[misc]
        )


@pytest.fixture
def tenant(line: Line, ending: list[str], tmp_path: Path) -> Iterator[Tenant]:
    namespace = f"mallory-{uuid.uuid4().hex[:6]}"
    line.kubectl("create", "namespace", namespace)
    line.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=privileged")
    line.kubectl("create", "serviceaccount", "mallory", "-n", namespace)
    line.kubectl("apply", "-f", "-", text=yamltext.dump(ROLE))
    for role in ("edit", "model-deployments"):
        account = f"--serviceaccount={namespace}:mallory"
        line.kubectl("create", "rolebinding", role, f"--clusterrole={role}", account, "-n", namespace)
    token = line.kubectl("create", "token", "mallory", "-n", namespace).strip()
    config = yamltext.load(line.cluster.kubeconfig.read_text())
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    file = tmp_path / "kubeconfig"
    file.write_text(yamltext.dump(config))
    found = Tenant(line, namespace, file)

    def may() -> bool:
        """Whether both roles are in force. Pods need the account that a controller makes in a new namespace."""
        kinds = ("pods", "modeldeployments.thunderfleet.io")
        allowed = all(found.kubectl("auth", "can-i", "create", kind).stdout.strip() == "yes" for kind in kinds)
        return allowed and line.api.get(f"/api/v1/namespaces/{namespace}/serviceaccounts/default") is not None

    until(may, "the tenant has its rights")
    assert found.kubectl("auth", "can-i", "get", "pods", "-n", "default").stdout.strip() == "no"
    yield found
    # The tenant's ModelDeployments and whatever was forged go with it.
    line.kubectl("delete", "namespace", namespace, "--wait=false")
    ending.append(namespace)


@dataclass
class Policies:
    """The policies that reserve the operator's labels. Switching takes seconds, so they stay as the last test wanted them."""

    line: Line
    on: bool | None = None

    def switch(self, on: bool) -> None:
        """Installs or removes them, and waits until the API server follows."""
        if self.on is on:
            return
        probe = yamltext.dump(look_alike("ConfigMap", "probe", "default"))

        def follows() -> bool:
            done = self.line.cluster.kubectl("create", "--dry-run=server", "-f", "-", text=probe, check=False)
            return (done.returncode != 0) == on

        # The chart installs them.
        if not follows():
            self.line.cluster.helm(
                *("upgrade", "thunderfleet", str(CHART), "--namespace", SYSTEM, "--reuse-values"),
                *("--set", f"operator.reserveObjects={str(on).lower()}"),
                seconds=120,
            )
            until(follows, f"the policies {'refuse' if on else 'are gone'}")
        self.on = on


@pytest.fixture(scope="module")
def switched(line: Line) -> Policies:
    return Policies(line)


@pytest.fixture
def policies(switched: Policies) -> None:
    switched.switch(True)


@pytest.fixture
def no_policies(switched: Policies) -> None:
    switched.switch(False)


def look_alike(kind: str, name: str, namespace: str, **metadata: Any) -> Json:
    labels = {"app.kubernetes.io/managed-by": "thunderfleet-operator"}
    specs: dict[str, Json] = {
        "Pod": {"spec": {"containers": [{"name": "c", "image": "none"}]}},
        "Service": {"spec": {"clusterIP": "None", "ports": [{"port": 80}]}},
    }
    found = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace, "labels": labels, **metadata}}
    return {**found, **specs.get(kind, {})}


def _update(changes: Json, plan: Json) -> None:
    plan.update(changes)


def plan_of(deployment: Deployment, namespace: str, change: Callable[[Json], None], name: str = "") -> Json:
    """A ConfigMap with a copy of a deployment's plan, changed, with its labels and its signature."""

    def only() -> Json | None:
        """The operator deletes an old plan after the new one is in force."""
        label = f"{MANAGED},thunderfleet.io/deployment={deployment.name}"
        items = deployment.line.items("configmaps", "-n", deployment.namespace, "-l", label)
        return items[0] if len(items) == 1 else None

    item = deployment.until(only, "it has one plan")
    plan = json.loads(item["data"]["plan.json"])
    change(plan)
    found = name or f"{plan['deployment']}-{plan['index']}-e{plan['epoch']}"
    for rank in plan["ranks"]:
        rank["pod"] = f"{found}-{rank['rank']}"
    metadata = {key: copy.deepcopy(item["metadata"][key]) for key in ("labels", "annotations")}
    metadata["labels"] |= {"thunderfleet.io/deployment": plan["deployment"], "thunderfleet.io/epoch": str(plan["epoch"])}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": found, "namespace": namespace, **metadata},
        "data": {"plan.json": json.dumps(plan)},
    }


def refused(done: "subprocess.CompletedProcess[str]", says: str) -> None:
    assert done.returncode != 0, done.stdout
    assert says in done.stderr, done.stderr


def untouched(deployment: Deployment) -> Json:
    """What a forgery must not change."""
    pods = {child["metadata"]["name"]: child["metadata"]["uid"] for child in deployment.children() if child["kind"] == "Pod"}
    return {"pods": pods, "epoch": deployment.group()["epoch"], "state": deployment.state}


# --- with the policies -------------------------------------------------------------------------------------------------


def test_look_alikes_are_refused(line: Line, policies: None, tenant: Tenant) -> None:
    managed = "only the operator may set or remove the label app.kubernetes.io/managed-by=thunderfleet-operator"
    for kind in ("ConfigMap", "Secret", "Service", "Pod"):
        item = look_alike(kind, "forged", tenant.namespace)
        refused(tenant.create(item), managed)
        for key in ("deployment", "group", "epoch", "rank"):
            item["metadata"]["labels"] = {f"thunderfleet.io/{key}": "1"}
            refused(tenant.create(item), "only the operator may change the labels")
        item["metadata"]["labels"] = {}
        for key in ("hash", "ports", "reason", "signature"):
            item["metadata"]["annotations"] = {f"thunderfleet.io/{key}": "1"}
            refused(tenant.create(item), "only the operator may change the annotations")
        item["metadata"]["annotations"] = {}
        done = tenant.create(item)
        assert done.returncode == 0, done.stderr
        plural = kind.lower()
        refused(tenant.kubectl("label", plural, "forged", MANAGED), managed)
        refused(tenant.kubectl("label", plural, "forged", "thunderfleet.io/rank=0"), "only the operator may change the labels")
        tenant.must("label", plural, "forged", "app=mine")


def test_what_the_operator_made_keeps_its_labels(line: Line, policies: None, tenant: Tenant) -> None:
    own = Deployment(line, tenant.namespace, "own")
    usual = {"model": {"repository": "thunderfleet/tiny-qwen2"}, "benchmark": {"promptTokens": 2, "generationTokens": 1}}
    tenant.must("apply", "-f", "-", text=yamltext.dump(manifest(tenant.namespace, "own", {**usual, **ONE})))
    own.until_ready()
    children = own.children()
    assert {child["kind"] for child in children} >= {"ConfigMap", "Secret", "Pod"}
    for child in children:
        kind, name = child["kind"].lower(), child["metadata"]["name"]
        refused(tenant.kubectl("label", kind, name, "app.kubernetes.io/managed-by-"), "only the operator may set or remove")
        refused(tenant.kubectl("label", kind, name, "--overwrite", "thunderfleet.io/deployment=x"), "only the operator may")
        if kind in ("configmap", "pod"):
            refused(
                tenant.kubectl("annotate", kind, name, "thunderfleet.io/signature-"), "only the operator may change the ann"
            )
        tenant.must("annotate", kind, name, "mine=1")
    status = ("patch", "md", "own", "--subresource=status", "--type=merge", "-p", '{"status": {"highestEpoch": 9}}')
    refused(tenant.kubectl(*status), "only the operator may write the status of a ModelDeployment")
    # The garbage collector deletes the children of a deleted one; the fixture deletes the namespace.
    tenant.must("delete", "md", "own", "--cascade=foreground", "--timeout=90s")
    until(lambda: not own.children(), "the children are gone", describe=lambda: str(own.left()))


# --- names that are taken ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("headless", quick([True], [False, True]))
def test_a_deployment_named_like_a_service(line: Line, policies: None, tenant: Tenant, headless: bool) -> None:
    if line.cluster.network != "namespaces":
        pytest.skip("the API server accepts no EndpointSlices with loopback addresses, so there are no Services")
    arguments = ("clusterip", "web", "--tcp=80", *(("--clusterip=None",) if headless else ()))
    tenant.must("create", "service", *arguments)
    before = line.json("get", "service", "web", "-n", tenant.namespace)
    spec = {"model": {"repository": "thunderfleet/tiny-qwen2"}, **ONE}
    tenant.must("apply", "-f", "-", text=yamltext.dump(manifest(tenant.namespace, "web", spec)))
    own = Deployment(line, tenant.namespace, "web").until_ready()
    message = own.until_condition("Degraded", "True", "NameTaken")["message"]
    assert message.startswith(f"Service {tenant.namespace}/web exists, and the operator did not create it")
    assert line.json("get", "service", "web", "-n", tenant.namespace) == before


# --- the operator's key ------------------------------------------------------------------------------------------------


def test_a_lost_key_stops_no_group(line: Line, policies: None, deploy: Deploy) -> None:
    serves = deploy("serves", **ONE).until_ready()
    before, answer = untouched(serves), serves.tokens(PROMPT, TOKENS)
    line.kubectl("delete", "secret", KEY, "-n", SYSTEM)
    line.kubectl("rollout", "restart", OPERATOR, "-n", SYSTEM)
    line.cluster.kubectl("rollout", "status", OPERATOR, "-n", SYSTEM, "--timeout=90s", seconds=100)
    told = serves.until_condition("Degraded", "True", "OperatorKeyLost")
    assert "to place it again with the new key" in told["message"]
    assert untouched(serves) == before and serves.is_ready()
    assert serves.tokens(PROMPT, TOKENS) == answer
    serves.kubectl("delete", "pod", next(iter(before["pods"])), "--wait=false")
    serves.until(lambda: serves.group()["epoch"] > before["epoch"], "another epoch", 90)
    serves.until_ready()
    serves.until_condition("Degraded", "False", "AsExpected")
    assert serves.tokens(PROMPT, TOKENS) == answer


# --- without the policies ----------------------------------------------------------------------------------------------


def settled(line: Line, deploy: Deploy) -> None:
    """The operator has worked since: a new deployment is placed and serves."""
    fresh = deploy("fresh", **ONE).until_ready()
    line.forget(fresh)


@pytest.fixture(scope="module")
def the_victim(line: Line) -> Iterator[Deployment]:
    """One for all forgeries, none of which may touch it."""
    found = line.deploy("victim", **ONE)
    yield found
    line.forget(found)


@pytest.fixture
def victim(the_victim: Deployment) -> Deployment:
    return the_victim.until_ready()


def test_a_forged_plan_claims_no_memory_and_an_odd_annotation_stops_no_placement(
    line: Line, no_policies: None, victim: Deployment, tenant: Tenant, deploy: Deploy
) -> None:
    """One ConfigMap without an owner that claims 2^50 bytes of each Mac, and a pod for each that requests them.

    Beside them pods with annotations that no program can read. All pods stay Pending; each round of the operator reads them.
    """

    def claim(plan: Json) -> None:
        rank = plan["ranks"][0]
        plan.update(namespace=tenant.namespace, uid=str(uuid.uuid4()), deployment="greedy")
        plan["ranks"] = [{**rank, "rank": n, "node": node, "memoryBytes": HUGE} for n, node in enumerate(line.macs)]
        plan.update(backend="ring", split="Tensor")
        for number, one in enumerate(plan["ranks"]):
            one.update(ringAddress=f"10.9.9.{number}", ringPorts=[29998, 29999])

    forged = [plan_of(victim, tenant.namespace, claim)]
    for mac in line.macs:
        pod = look_alike("Pod", f"waits-{mac}", tenant.namespace)
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [mac]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        pod["spec"]["affinity"] = {"nodeAffinity": required}
        pod["spec"]["containers"][0]["resources"] = {"requests": {"memory": str(HUGE)}}
        forged.append(pod)
    for name, ports in (("infinite", '{"gateway": Infinity, "control": 1}'), ("deep", "[" * 5000)):
        pod = look_alike("Pod", name, tenant.namespace, annotations={ANNOTATION_PORTS: ports})
        pod["spec"]["nodeSelector"] = {"there-is": "none"}
        forged.append(pod)
    tenant.make(*forged)
    before = untouched(victim)
    settled(line, deploy)
    assert untouched(victim) == before


def child_of(owner: Deployment, item: Json) -> Json:
    """The object with this deployment as its owner, in the operator's way."""
    reference = {"apiVersion": "thunderfleet.io/v1alpha1", "kind": "ModelDeployment", "name": owner.name, "controller": True}
    reference |= {"uid": owner.get()["metadata"]["uid"], "blockOwnerDeletion": False}
    item["metadata"]["ownerReferences"] = [reference]
    return item


def test_forged_plans_of_a_tenant_yield_no_key_plant_no_pod_and_delete_no_secret(
    line: Line, no_policies: None, victim: Deployment, tenant: Tenant, deploy: Deploy
) -> None:
    """Plans with the UID of a victim, for another namespace, for a folder of the Mac, and with the name of a Secret.

    They belong to two deployments of the tenant: one with the victim's name, and ``own``.
    """
    (secret,) = line.items("secrets", "-n", victim.namespace, "-l", MANAGED)
    spec = victim.get()["spec"]
    alike, own = (Deployment(line, tenant.namespace, name) for name in (victim.name, "own"))
    tenant.make(*(manifest(tenant.namespace, one.name, spec) for one in (alike, own)))
    tenant.must("create", "secret", "generic", "database", "--from-literal=password=x")
    kept = line.json("get", "secret", "database", "-n", tenant.namespace)["metadata"]["uid"]
    alike.until_ready()
    own.until_ready()
    elsewhere = {item["metadata"]["name"] for item in line.items("pods", "-n", "kube-system")}

    # A plan of another namespace is none of this deployment, so the other one is its newest in either case.
    plant = {"namespace": "kube-system", "modelPath": "/etc", "epoch": 9}
    redirect = {"modelPath": "/etc", "epoch": 8}
    forged = [plan_of(own, tenant.namespace, functools.partial(_update, changes)) for changes in (plant, redirect)]
    forged.append(plan_of(own, tenant.namespace, functools.partial(_update, {"epoch": 1}), "database"))
    tenant.make(*(child_of(own, item) for item in forged))
    for epoch in (1, 7):
        moved = {"namespace": tenant.namespace, "epoch": epoch}
        stolen = child_of(alike, plan_of(victim, tenant.namespace, functools.partial(_update, moved)))
        tenant.kubectl("delete", "configmap", stolen["metadata"]["name"], "--ignore-not-found")
        tenant.make(stolen)
    tenant.must("delete", "pods", "-l", f"{MANAGED},thunderfleet.io/deployment=own", "--wait=false")
    before = untouched(victim)

    def of(one: Deployment, kind: str) -> list[Json]:
        return line.items(kind, "-n", tenant.namespace, "-l", f"thunderfleet.io/deployment={one.name}")

    def check() -> None:
        theirs = json.dumps(line.items("secrets", "-n", tenant.namespace))
        found = [field for field in ("tls.key", "tls.crt") if secret["data"][field] in theirs]
        assert not found, "by the plans with the UID of the victim"
        planted = {item["metadata"]["name"] for item in line.items("pods", "-n", "kube-system")} ^ elsewhere
        assert not planted, "by the plan for another namespace"
        volumes = [v for pod in line.items("pods", "-n", tenant.namespace) for v in pod["spec"].get("volumes", [])]
        redirected = [volume for volume in volumes if volume.get("hostPath", {}).get("path") == "/etc"]
        assert not redirected, "by the plan for a folder of the Mac"
        assert untouched(victim) == before

    settled(line, deploy)
    check()
    alike.until_ready()
    own.until(lambda: own.group().get("epoch") == 2, "a new epoch for the deleted pod")
    own.until_ready()
    check()
    # Old placements are cleaned up now.
    tenant.must("patch", "md", "own", "--type=merge", "-p", '{"spec": {"memory": {"contextTokens": 1024}}}')
    own.until(lambda: own.group().get("epoch") == 3, "a new epoch for the new spec")
    own.until_ready()
    check()
    assert "tls.key" in json.dumps(of(alike, "secrets"))
    assert [volume for pod in of(own, "pods") for volume in pod["spec"].get("volumes", [])]
    now = line.json("get", "secret", "database", "-n", tenant.namespace)["metadata"]["uid"]
    assert now == kept, "by the plan with the name of the Secret"


# --- upgrades ----------------------------------------------------------------------------------------------------------


def clean(item: Json) -> Json:
    """An object to create again as it is, but unsigned."""
    annotations = {key: value for key, value in item["metadata"].get("annotations", {}).items() if key != SIGNATURE}
    kept = {key: item["metadata"][key] for key in ("name", "namespace", "labels", "ownerReferences") if key in item["metadata"]}
    found = {key: value for key, value in item.items() if key not in ("status", "metadata")}
    # Items of a list do not say their apiVersion.
    return {"apiVersion": "v1", **found, "metadata": {**kept, "annotations": annotations}}


def made_by_an_older_version(line: Line, group: Deployment) -> None:
    """Replaces plan, keys, pods and status by those that a version wrote which did not sign. The operator must not run."""
    as_operator = f"--as=system:serviceaccount:{SYSTEM}:thunderfleet-operator"
    children = {child["kind"]: child for child in group.children()}
    item, pod = children["ConfigMap"], children["Pod"]
    plan = Plan.model_validate_json(item["data"]["plan.json"])
    master = base64.b64decode(line.json("get", "secret", KEY, "-n", SYSTEM)["data"][KEY_FIELD])
    pair = unsigned_group_keys(master, plan)
    # It named the Secret like the plan.
    secret = clean(children["Secret"])
    secret["metadata"] |= {"name": plan.name, "ownerReferences": item["metadata"]["ownerReferences"]}
    texts = {"tls.crt": pair.certificate, "tls.key": pair.key}
    secret["data"] = {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}
    older = clean(pod)
    older["spec"].pop("nodeName")
    for volume in older["spec"]["volumes"]:
        if "secret" in volume:
            volume["secret"]["secretName"] = plan.name
    group.kubectl("delete", "pod", pod["metadata"]["name"], "--timeout=90s")
    group.kubectl("delete", "configmap", plan.name)
    # The pod's owner is the ModelDeployment; the plan's too.
    for one in (clean(item), secret, older):
        group.kubectl("create", as_operator, "-f", "-", text=yamltext.dump(one))
    status = group.status
    status.pop("highestEpoch")
    for entry in status["groups"]:
        entry.pop("planDigest")
    change = json.dumps([{"op": "replace", "path": "/status", "value": status}])
    group.kubectl("patch", "md", group.name, "--subresource=status", "--type=json", "-p", change)


def pods_of(group: Deployment) -> Json:
    """Whatever a restart would change, by pod."""
    return {
        child["metadata"]["name"]: (child["metadata"]["uid"], [one["restartCount"] for one in statuses])
        for child in group.children()
        if child["kind"] == "Pod" and (statuses := child["status"].get("containerStatuses"))
    }


@pytest.mark.soak
def test_an_upgrade_from_unsigned_plans_restarts_nothing(line: Line, no_policies: None, deploy: Deploy) -> None:
    """Without the policies, because this test writes the older status."""
    older = deploy("older", **ONE).until_ready()
    answer = older.tokens(PROMPT, TOKENS)
    line.kubectl("scale", OPERATOR, "-n", SYSTEM, "--replicas=0")
    operators = ("pods", "-n", SYSTEM, "-l", "app.kubernetes.io/component=operator")
    try:
        until(lambda: not line.items(*operators), "no operator runs")
        made_by_an_older_version(line, older)

        def runs() -> bool:
            return [condition(pod, "Ready").get("status") for pod in line.items("pods", "-n", older.namespace)] == ["True"]

        older.until(runs, "the pod of the older version is ready", READY_SECONDS)
        before = pods_of(older)
        assert len(before) == 1 and "planDigest" not in older.group()
    finally:
        line.kubectl("scale", OPERATOR, "-n", SYSTEM, "--replicas=1")
    older.until(lambda: older.group().get("planDigest"), "the operator records the plan")
    older.until_ready()
    settled(line, deploy)
    assert pods_of(older) == before and older.group()["epoch"] == 1
    older.until_condition("Degraded", "False", "AsExpected")
    assert older.tokens(PROMPT, TOKENS) == answer
    older.kubectl("delete", "pod", next(iter(before)), "--wait=false")
    older.until(lambda: older.group()["epoch"] == 2, "the next epoch")
    older.until_ready()
    plans = [child for child in older.children() if child["kind"] == "ConfigMap"]
    assert SIGNATURE in plans[-1]["metadata"]["annotations"], "the next plan is signed"
