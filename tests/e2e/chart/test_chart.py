"""The chart on a real API server: who may write what, and what happens to CRDs and objects over a release's life."""

import base64
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_lib.kube import ApiError, Kube
from thunderfleet_localcluster.client.cluster import Cluster

from tests.support import yamltext
from tests.support.waiting import until_async

Json = dict[str, Any]

CHART = Path(__file__).parents[3] / "charts" / "thunderfleet"
RELEASE = "thunderfleet"
NAMESPACE = "thunderfleet-system"
API = "thunderfleet.io/v1alpha1"
PROFILES = f"/apis/{API}/nodeprofiles"
LINKS = f"/apis/{API}/thunderboltlinks"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodeprofiles.thunderfleet.io"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
POLICY_NAMES = ("thunderfleet-agent-nodeprofiles", "thunderfleet-agent-thunderboltlinks")
NODE_NAME_KEY = "authentication.kubernetes.io/node-name"
MACS = ("chart-mac-a", "chart-mac-b", "chart-mac-c")
A, B, C = MACS
LINK = f"{A}.tb1--{B}.tb1"
KEY_SECRET = "thunderfleet-operator-key"
WAIT_SECONDS = 60.0
WHEN = "2026-01-01T00:00:00Z"


def install(cluster: Cluster, chart: Path = CHART, *arguments: str) -> None:
    cluster.helm("upgrade", "--install", RELEASE, str(chart), "--namespace", NAMESPACE, "--create-namespace", *arguments)


@pytest.fixture(scope="module")
def installed(control_plane: Cluster) -> Iterator[Cluster]:
    install(control_plane)
    yield control_plane
    control_plane.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--ignore-not-found", "--wait")


@pytest.fixture
async def admin(installed: Cluster) -> AsyncIterator[Kube]:
    async with await Kube.from_kubeconfig(installed.kubeconfig) as kube:
        yield kube


def _decode(text: str, file: Path) -> Path:
    file.write_bytes(base64.b64decode(text))
    return file


@pytest.fixture
async def as_token(installed: Cluster, tmp_path: Path) -> AsyncIterator[Callable[[str], Kube]]:
    """Connections with a bearer token and nothing else."""
    config = yamltext.load(installed.kubeconfig.read_text())
    ca = _decode(config["clusters"][0]["cluster"]["certificate-authority-data"], tmp_path / "ca.crt")
    opened: list[Kube] = []

    def connect(token: str) -> Kube:
        opened.append(Kube.with_files(installed.server, ca, token=token))
        return opened[-1]

    yield connect
    for kube in opened:
        await kube.close()


async def token(admin: Kube, account: str, pod: str | None = None) -> str:
    """A token of a service account; bound to ``pod``, it names the node that the pod is on."""
    spec: Json = {"expirationSeconds": 3600}
    if pod:
        found = await admin.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}")
        spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": found["metadata"]["uid"]}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    answer = await admin.create(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token", body)
    return str(answer["status"]["token"])


async def create_if_missing(admin: Kube, path: str, body: Json) -> None:
    try:
        await admin.create(path, body)
    except ApiError as error:
        if error.status != 409:
            raise


Agents = dict[str, Kube]


@pytest.fixture
async def agents(admin: Kube, as_token: Callable[[str], Kube]) -> Agents:
    """A connection per Mac, as that Mac's agent has it: with a token bound to a pod on that Mac's Node."""
    for mac in MACS:
        await create_if_missing(admin, "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": mac}})
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"agent-{mac}", "namespace": NAMESPACE},
            "spec": {
                "nodeName": mac,
                "serviceAccountName": "thunderfleet-agent",
                "containers": [{"name": "agent", "image": "none"}],
                "tolerations": [{"operator": "Exists"}],
            },
        }
        await create_if_missing(admin, f"/api/v1/namespaces/{NAMESPACE}/pods", pod)
    found = {mac: as_token(await token(admin, "thunderfleet-agent", f"agent-{mac}")) for mac in MACS}

    async def active() -> bool:
        for path, body in ((f"{PROFILES}/{B}", profile(B)), (f"{LINKS}/{LINK}", link_body())):
            try:
                await write(found[C], path, body, dryRun="All")
            except ApiError as error:
                if error.status != 422:
                    return False
            else:
                return False
        return True

    await until_async(active, "the admission policies refuse", WAIT_SECONDS)
    return found


@pytest.fixture
async def link(admin: Kube, agents: Agents) -> AsyncIterator[Json]:
    """A link between A and B as both agents and the operator have written it; undone afterwards."""
    for mac in (A, B):
        await write(agents[mac], f"{LINKS}/{LINK}", link_body())
        await write(agents[mac], f"{LINKS}/{LINK}/status", link_body(endpoints=[endpoint(mac)]), manager=f"agent-{mac}")
    await write(agents[B], f"{LINKS}/{LINK}/status", link_body(measurements=[measured(A, B)]), manager=f"measures-{B}")
    summary = link_body(conditions=[condition("Connected", "BothEnds")], generation="TB5")
    await write(admin, f"{LINKS}/{LINK}/status", summary, manager="thunderfleet-operator")
    yield await admin.get(f"{LINKS}/{LINK}")
    await admin.delete(f"{LINKS}/{LINK}")


async def write(kube: Kube, path: str, body: Json, *, manager: str = "agent", force: bool = True, **query: object) -> Json:
    """Server-side apply."""
    return await kube.request(
        "PATCH",
        path,
        query={"fieldManager": manager, "force": force, **query},
        body=body,
        content="application/apply-patch+yaml",
    )


def profile(name: str, **status: object) -> Json:
    body: Json = {"apiVersion": API, "kind": "NodeProfile", "metadata": {"name": name}}
    return {**body, "status": status} if status else body


def link_body(name: str = LINK, **status: object) -> Json:
    ends = [end.rsplit(".tb", 1) for end in name.split("--")]
    spec = {key: {"node": node, "port": int(port)} for key, (node, port) in zip("ab", ends, strict=True)}
    body: Json = {"apiVersion": API, "kind": "ThunderboltLink", "metadata": {"name": name}}
    return {**body, "status": status} if status else {**body, "spec": spec}


def endpoint(node: str, **more: object) -> Json:
    return {"node": node, "port": 1, "interface": "en2", "seesPeer": True, **more}


def measured(sender: str, receiver: str, mbps: int = 1000) -> Json:
    return {"from": sender, "to": receiver, "transport": "Socket", "throughputMbps": mbps, "measuredAt": WHEN}


def condition(kind: str, reason: str, status: str = "True") -> Json:
    return {"type": kind, "status": status, "reason": reason, "message": "set by a test", "lastTransitionTime": WHEN}


async def refused(work: Awaitable[object], *says: str) -> None:
    """The admission policy refuses ``work`` with a message that contains these words."""
    with pytest.raises(ApiError) as caught:
        await work
    assert caught.value.status == 422, caught.value
    for words in ("thunderfleet-agent", *says):
        assert words in caught.value.message


# --- identity of an agent ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", POLICY_NAMES)
async def test_a_policy_is_checked_without_warnings(admin: Kube, name: str) -> None:
    async def observed() -> bool:
        return "typeChecking" in ((await admin.get(f"{POLICIES}/{name}")).get("status") or {})

    await until_async(observed, "the policy's types are checked", WAIT_SECONDS)
    assert (await admin.get(f"{POLICIES}/{name}"))["status"]["typeChecking"] == {}


async def test_a_bound_token_names_its_node(agents: Agents) -> None:
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    for mac in MACS:
        answer = await agents[mac].create("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
        assert answer["status"]["userInfo"]["extra"][NODE_NAME_KEY] == [mac]


async def test_a_token_without_a_node_writes_nothing(admin: Kube, agents: Agents, as_token: Callable[[str], Kube]) -> None:
    stray = as_token(await token(admin, "thunderfleet-agent"))
    await refused(write(stray, f"{PROFILES}/{A}", profile(A)), "must be bound to a pod on a node")


# --- NodeProfile -------------------------------------------------------------------------------------------------------------


async def test_an_agent_writes_its_own_profile_and_no_other(agents: Agents) -> None:
    for mac in (A, B):
        await write(agents[mac], f"{PROFILES}/{mac}", profile(mac))
        await write(agents[mac], f"{PROFILES}/{mac}/status", profile(mac, hardware={"chip": mac}))
    for me, other in ((A, B), (B, A)):
        for path in (f"{PROFILES}/{other}", f"{PROFILES}/{other}/status"):
            sentence = f"the agent of {me} may write only the NodeProfile {me}"
            body = profile(other, hardware={"chip": "mine"}) if path.endswith("status") else profile(other)
            await refused(write(agents[me], path, body), sentence)
            await refused(write(agents[me], path, body, manager=f"agent-{other}"), sentence)
            await refused(write(agents[me], path, body, force=False), sentence)
    # By create and by merge patch, too.
    await refused(agents[A].create(PROFILES, profile(C)), f"may write only the NodeProfile {A}")
    await refused(
        agents[A].patch(f"{PROFILES}/{B}/status", {"status": {"hardware": {"chip": "mine"}}}),
        f"may write only the NodeProfile {A}",
    )


async def test_quarantine_is_not_an_agents_to_lift(admin: Kube, agents: Agents) -> None:
    await write(agents[A], f"{PROFILES}/{A}", profile(A))
    await refused(
        write(agents[A], f"{PROFILES}/{A}/status", profile(A, conditions=[condition("Quarantined", "StackHung")])),
        "Quarantined",
    )
    quarantine = profile(A, conditions=[condition("Quarantined", "StackHung")])
    await write(admin, f"{PROFILES}/{A}/status", quarantine, manager="thunderfleet-operator")
    lifted = profile(A, conditions=[condition("Quarantined", "Fine", "False")])
    await refused(write(agents[A], f"{PROFILES}/{A}/status", lifted), "Quarantined")
    await refused(write(agents[A], f"{PROFILES}/{A}/status", lifted, manager="thunderfleet-operator"), "Quarantined")
    await refused(agents[A].patch(f"{PROFILES}/{A}/status", {"status": {"conditions": []}}), "Quarantined")
    # An agent still writes its own conditions.
    await write(agents[A], f"{PROFILES}/{A}/status", profile(A, conditions=[condition("InventoryComplete", "Complete")]))
    kinds = {entry["type"] for entry in (await admin.get(f"{PROFILES}/{A}"))["status"]["conditions"]}
    assert kinds == {"Quarantined", "InventoryComplete"}
    await admin.delete(f"{PROFILES}/{A}")


HELD: Json = {
    "quarantine": {"bootID": "one", "since": "2026-01-01T00:00:00Z", "reason": "StackHung", "evidence": "no answer"},
    "groups": [{"name": "default/md-0", "epoch": 1, "nodes": [A, B], "links": []}],
}


@pytest.mark.parametrize("part", HELD)
async def test_what_the_operator_says_of_a_mac_is_not_its_agents(admin: Kube, agents: Agents, part: str) -> None:
    await write(agents[A], f"{PROFILES}/{A}", profile(A))
    path, sentence = (
        f"{PROFILES}/{A}/status",
        f"only the operator may change the {part} of a NodeProfile",
    )
    said = profile(A, **{part: HELD[part]})
    await refused(write(agents[A], path, said), sentence)
    await write(admin, path, said, manager="thunderfleet-operator")
    await refused(agents[A].patch(path, {"status": {part: None}}), sentence)
    changed = [{**HELD[part][0], "epoch": 2}] if part == "groups" else {**HELD[part], "reason": "Fine"}
    await refused(write(agents[A], path, profile(A, **{part: changed}), manager="thunderfleet-operator"), sentence)
    await write(agents[A], path, profile(A, hardware={"chip": A}))
    assert (await admin.get(f"{PROFILES}/{A}"))["status"][part] == HELD[part]
    await admin.delete(f"{PROFILES}/{A}")


# --- ThunderboltLink ---------------------------------------------------------------------------------------------------------


async def test_either_end_makes_the_link_and_a_third_mac_does_not(admin: Kube, agents: Agents) -> None:
    other = f"{A}.tb2--{B}.tb2"
    for maker, name in ((A, LINK), (B, other)):
        await refused(
            write(agents[C], f"{LINKS}/{name}", link_body(name)), f"the agent of {C} may write only links that end at {C}"
        )
        await write(agents[maker], f"{LINKS}/{name}", link_body(name))
        await refused(write(agents[C], f"{LINKS}/{name}/status", link_body(name, endpoints=[endpoint(C)])), "links that end at")
        await admin.delete(f"{LINKS}/{name}")


@pytest.mark.parametrize(("me", "other"), [(A, B), (B, A)])
async def test_an_agent_changes_its_own_end_only(admin: Kube, agents: Agents, link: Json, me: str, other: str) -> None:
    path = f"{LINKS}/{LINK}/status"
    await write(agents[me], path, link_body(endpoints=[endpoint(me, address="169.254.1.1")]), manager=f"agent-{me}")
    now = {entry["node"]: entry for entry in (await admin.get(f"{LINKS}/{LINK}"))["status"]["endpoints"]}
    assert now[me]["address"] == "169.254.1.1"
    assert "address" not in now[other]
    sentence = f"the agent of {me} may change only its own end of a link"
    theirs = link_body(endpoints=[endpoint(other, address="169.254.6.6")])
    await refused(write(agents[me], path, theirs), sentence)
    await refused(write(agents[me], path, theirs, manager=f"agent-{other}"), sentence)
    # An apply removes the fields that its manager owns and leaves out: with another agent's manager, that agent's entry.
    await refused(write(agents[me], path, {**link_body(), "status": {}}, manager=f"agent-{other}"), sentence)
    await refused(agents[me].patch(path, {"status": {"endpoints": [endpoint(me)]}}), sentence)
    # An agent may remove its own entry.
    await write(agents[me], path, {**link_body(), "status": {}}, manager=f"agent-{me}")
    assert [entry["node"] for entry in (await admin.get(f"{LINKS}/{LINK}"))["status"]["endpoints"]] == [other]


async def test_the_receiver_measures(admin: Kube, agents: Agents, link: Json) -> None:
    path = f"{LINKS}/{LINK}/status"
    await write(agents[B], path, link_body(measurements=[measured(A, B, 2000)]), manager=f"measures-{B}")
    await write(agents[A], path, link_body(measurements=[measured(B, A)]), manager=f"measures-{A}")
    both = {
        (entry["from"], entry["to"]): entry["throughputMbps"]
        for entry in (await admin.get(f"{LINKS}/{LINK}"))["status"]["measurements"]
    }
    assert both == {(A, B): 2000, (B, A): 1000}
    for me, other in ((A, B), (B, A)):
        sentence = f"the agent of {me} may change only measurements that it received"
        for manager in ("agent", f"measures-{other}"):
            await refused(write(agents[me], path, link_body(measurements=[measured(me, other, 9)]), manager=manager), sentence)
        await refused(write(agents[me], path, {**link_body(), "status": {}}, manager=f"measures-{other}"), sentence)


async def test_the_summary_is_the_operators(agents: Agents, link: Json) -> None:
    path = f"{LINKS}/{LINK}/status"
    for manager in ("agent", "thunderfleet-operator"):
        bad = condition("Connected", "OneEnd", "False")
        await refused(
            write(agents[A], path, link_body(conditions=[bad]), manager=manager),
            "only the operator may change the conditions of a link",
        )
        await refused(
            write(agents[A], path, link_body(conditions=[condition("RDMAUsable", "Usable")]), manager=manager),
            "conditions of a link",
        )
    for column, value in {"speed": "80G", "generation": "TB4", "rdma": "Usable", "gbps": "70.0/41.0", "rtt": "9us"}.items():
        await refused(write(agents[A], path, link_body(**{column: value})), "summary of a link")


async def test_an_agent_neither_deletes_nor_keeps(agents: Agents, link: Json) -> None:
    """RBAC refuses deletes; the ways around it through owners and finalizers are the policy's."""
    for path in (f"{LINKS}/{LINK}", f"{PROFILES}/{A}"):
        with pytest.raises(ApiError) as caught:
            await agents[A].delete(path)
        assert caught.value.status == 403
    gone = {"apiVersion": "v1", "kind": "Node", "name": "never-was", "uid": "00000000-0000-0000-0000-000000000000"}
    for key, value in (("ownerReferences", [gone]), ("finalizers", ["example.com/never"])):
        body = link_body()
        body["metadata"][key] = value
        await refused(write(agents[A], f"{LINKS}/{LINK}", body), "must not set owners or finalizers")


async def test_the_policy_refuses_deletes_by_itself(admin: Kube, agents: Agents, link: Json) -> None:
    """Even with additional RBAC rules that an administrator adds by mistake."""
    role: Json = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "chart-test-too-much"},
        "rules": [{"apiGroups": ["thunderfleet.io"], "resources": ["thunderboltlinks", "nodeprofiles"], "verbs": ["delete"]}],
    }
    binding: Json = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "chart-test-too-much"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "chart-test-too-much"},
        "subjects": [{"kind": "ServiceAccount", "name": "thunderfleet-agent", "namespace": NAMESPACE}],
    }
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    await write(agents[A], f"{PROFILES}/{A}", profile(A))
    try:
        await admin.create(f"{rbac}/clusterroles", role)
        await admin.create(f"{rbac}/clusterrolebindings", binding)

        async def granted() -> bool:
            return await may(admin, "thunderfleet-agent", "delete", "thunderboltlinks", group="thunderfleet.io")

        await until_async(granted, "the role that a cluster's owner added is in force", WAIT_SECONDS)
        for path in (f"{LINKS}/{LINK}", f"{PROFILES}/{A}"):
            await refused(agents[A].delete(path), "agents must not delete objects")
    finally:
        await admin.delete(f"{rbac}/clusterrolebindings/chart-test-too-much")
        await admin.delete(f"{rbac}/clusterroles/chart-test-too-much")
        await admin.delete(f"{PROFILES}/{A}")


async def test_others_are_not_bound_by_the_policy(admin: Kube, agents: Agents, link: Json) -> None:
    await write(
        admin, f"{LINKS}/{LINK}/status", link_body(conditions=[condition("Connected", "OneEnd", "False")]), manager="me"
    )
    assert (await admin.get(f"{LINKS}/{LINK}"))["status"]["conditions"][0]["reason"] == "OneEnd"


# --- RBAC --------------------------------------------------------------------------------------------------------------------


async def may(
    admin: Kube, account: str, verb: str, resource: str, *, group: str = "", namespace: str = "", name: str = ""
) -> bool:
    """Whether a service account of the chart may do something."""
    attributes = {"verb": verb, "resource": resource, "group": group, "namespace": namespace, "name": name}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{NAMESPACE}:{account}",
            "groups": ["system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated"],
            "resourceAttributes": attributes,
        },
    }
    answer = await admin.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
    return bool(answer["status"].get("allowed"))


async def test_the_operator_reads_no_secret_but_its_own_key(admin: Kube, installed: Cluster) -> None:
    operator = "thunderfleet-operator"

    async def in_force() -> bool:
        return await may(admin, operator, "create", "secrets", namespace="default")

    await until_async(in_force, "the operator's role is in force", WAIT_SECONDS)
    assert await may(admin, operator, "get", "secrets", namespace=NAMESPACE, name=KEY_SECRET)
    assert not await may(admin, operator, "get", "secrets", namespace=NAMESPACE, name="another")
    for verb in ("get", "list", "watch", "patch", "delete"):
        assert not await may(admin, operator, verb, "secrets", namespace="default", name=KEY_SECRET)


def rules(cluster: Cluster, account: str) -> list[Json]:
    """Every rule that the chart binds to a service account, as the API server has them."""
    found: list[Json] = []
    for kind in ("clusterrole", "role"):
        listed = cluster.kubectl("get", kind, "-A", "-l", f"app.kubernetes.io/instance={RELEASE}", "-o", "json").stdout
        for item in json.loads(listed)["items"]:
            if item["metadata"]["name"] == account:
                found += item["rules"]
    return found


@pytest.mark.parametrize("account", ["thunderfleet-operator", "thunderfleet-agent"])
def test_no_rule_is_a_wildcard(installed: Cluster, account: str) -> None:
    found = rules(installed, account)
    assert found
    for rule in found:
        words = [word for key in ("apiGroups", "resources", "verbs") for word in rule[key]]
        assert not [word for word in words if "*" in word]


# --- users of namespaces -----------------------------------------------------------------------------------------------------


async def denied(work: Awaitable[object], words: str) -> None:
    with pytest.raises(ApiError) as caught:
        await work
    assert caught.value.status == 403, caught.value
    assert words in caught.value.message


async def test_a_user_with_edit_makes_models_and_no_pod_on_a_mac(
    admin: Kube, installed: Cluster, as_token: Callable[[str], Kube]
) -> None:
    namespace = "chart-tenant"
    pod: Json = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "mine", "namespace": namespace},
        "spec": {
            "runtimeClassName": "macos",
            "hostNetwork": True,
            "containers": [{"name": "main", "image": "thunderfleet/thunderfleet:0.1.0", "command": ["python3"]}],
        },
    }
    model = {"apiVersion": API, "kind": "ModelDeployment", "metadata": {"name": "mine", "namespace": namespace}}
    models = f"/apis/{API}/namespaces/{namespace}/modeldeployments"
    pods = f"/api/v1/namespaces/{namespace}/pods"
    install(installed, CHART, "--set", "pods.allowed=Operator")
    try:
        installed.kubectl("create", "namespace", namespace)
        who: dict[str, Kube] = {}
        for role in ("edit", "view"):
            installed.kubectl("create", "serviceaccount", role, "-n", namespace)
            binding = (f"--clusterrole={role}", f"--serviceaccount={namespace}:{role}")
            installed.kubectl("create", "rolebinding", role, *binding, "-n", namespace)
            who[role] = as_token(installed.kubectl("create", "token", role, "-n", namespace).stdout.strip())

        async def made() -> bool:
            # The controller that aggregates roles needs a moment.
            await who["edit"].create(models, model | {"spec": {"model": {"repository": "a/b"}}})
            return True

        await until_async(made, "a user with edit creates a ModelDeployment", WAIT_SECONDS, retry_on=(ApiError,))

        async def seen() -> bool:
            # It aggregates each role by itself.
            return bool((await who["view"].get(f"{models}/mine"))["spec"]["model"]["repository"] == "a/b")

        await until_async(seen, "a user with view sees it", WAIT_SECONDS, retry_on=(ApiError,))
        await denied(who["view"].patch(f"{models}/mine", {"spec": {"suspend": True}}), "cannot patch resource")
        await who["edit"].patch(f"{models}/mine", {"spec": {"suspend": True}})
        await denied(who["edit"].patch(f"{models}/mine/status", {"status": {}}), "cannot patch resource")
        await denied(who["edit"].get(PROFILES), "cannot list resource")

        async def policy_in_force() -> bool:
            try:
                await admin.request("POST", pods, query={"dryRun": "All"}, body=pod)
            except ApiError as error:
                return "only the operator may create pods on Macs" in str(error)
            return False

        await until_async(policy_in_force, "the policy is in force", WAIT_SECONDS)
        await denied(who["edit"].create(pods, pod), "only the operator may create pods on Macs")
        await who["edit"].delete(f"{models}/mine")
    finally:
        installed.kubectl("delete", "namespace", namespace, "--wait=false")
        install(installed)


# --- a release's life --------------------------------------------------------------------------------------------------------


async def test_crds_upgrade_outlive_the_release_and_are_adopted_again(
    control_plane: Cluster, installed: Cluster, admin: Kube, tmp_path: Path
) -> None:
    survivor = f"{PROFILES}/chart-survivor"
    await write(admin, survivor, profile("chart-survivor"), manager="test")
    before = await admin.get(survivor)

    newer = tmp_path / "thunderfleet"
    shutil.copytree(CHART, newer)
    file = newer / "templates" / "crds" / "thunderfleet.io_nodeprofiles.yaml"
    text = file.read_text()
    changed = text.replace("    - np\n", "    - np\n    - macprofile\n", 1)
    assert changed != text
    file.write_text(changed)
    install(control_plane, newer)
    crd = await admin.get(CRD)
    assert crd["spec"]["names"]["shortNames"] == ["np", "macprofile"]

    control_plane.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait")
    kept = await admin.get(CRD)
    assert kept["metadata"]["uid"] == crd["metadata"]["uid"]
    assert "deletionTimestamp" not in kept["metadata"]
    assert (await admin.get(survivor))["metadata"]["uid"] == before["metadata"]["uid"]
    assert await admin.get_or_none(f"{POLICIES}/{POLICY_NAMES[0]}") is None
    assert await admin.get_or_none(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/thunderfleet-operator") is None

    install(control_plane)
    again = await admin.get(CRD)
    assert again["metadata"]["uid"] == crd["metadata"]["uid"]
    assert again["spec"]["names"]["shortNames"] == ["np"]
    assert (await admin.get(survivor))["metadata"]["uid"] == before["metadata"]["uid"]
    await admin.delete(survivor)


def test_an_upgrade_that_changes_nothing_restarts_nothing(installed: Cluster) -> None:
    def versions() -> dict[str, str]:
        listed = installed.kubectl("get", "deployments,daemonsets", "-n", NAMESPACE, "-o", "json").stdout
        return {item["metadata"]["name"]: item["metadata"]["generation"] for item in json.loads(listed)["items"]}

    before = versions()
    install(installed)
    assert versions() == before


def test_a_bad_value_changes_nothing(installed: Cluster) -> None:
    before = installed.helm("history", RELEASE, "--namespace", NAMESPACE, "-o", "json").stdout
    done = installed.helm(
        "upgrade", RELEASE, str(CHART), "--namespace", NAMESPACE, "--set", "operator.ports.last=10", check=False
    )
    assert done.returncode != 0
    assert "/operator/ports/last" in done.stderr
    assert installed.helm("history", RELEASE, "--namespace", NAMESPACE, "-o", "json").stdout == before
