"""The chart in clusters of other people: taints, priorities, registries, namespaces, and the roles of their users."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_crds.names import CAPABILITY_FIRST

from tests.support import yamltext

Json = dict[str, Any]
Helm = Callable[..., "subprocess.CompletedProcess[str]"]
Render = Callable[..., list[Json]]

WORKLOADS = {"operator": ("Deployment",), "agent": ("DaemonSet",), "router": ("DaemonSet", "Deployment")}
CONTROL_PLANE = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
ROUTERS: Json = {"enabled": True, "linuxReplicas": 1}


@pytest.fixture
def rendered(render: Render, tmp_path: Path) -> Callable[[Json], list[Json]]:
    """The objects of a release with a file of values."""

    def run(values: Json) -> list[Json]:
        file = tmp_path / "values.yaml"
        file.write_text(yamltext.dump(values))
        return render("--values", str(file))

    return run


def workloads(objects: list[Json], component: str) -> list[Json]:
    name = f"thunderfleet-{component}"
    found = [item for item in objects if item["metadata"]["name"] == name and item["kind"] in WORKLOADS[component]]
    assert len(found) == len(WORKLOADS[component])
    return found


def pods(objects: list[Json], component: str) -> list[Json]:
    return [item["spec"]["template"]["spec"] for item in workloads(objects, component)]


def tolerates(pod: Json, taint: Json) -> bool:
    """As the scheduler compares a taint with the tolerations of a pod."""
    return any(
        one.get("key") in (None, taint["key"])
        and one.get("effect") in (None, taint["effect"])
        and (one.get("operator") == "Exists" or one.get("value", "") == taint.get("value", ""))
        for one in pod.get("tolerations", [])
    )


def fits(pod: Json, labels: Json, taints: list[Json]) -> bool:
    return pod.get("nodeSelector", {}).items() <= labels.items() and all(tolerates(pod, taint) for taint in taints)


LINUX, MAC = {"kubernetes.io/os": "linux"}, {"kubernetes.io/os": "darwin"}
MACOS = {"key": "thunderfleet.io/macos", "effect": "NoSchedule"}
OWN = {"key": "example.com/gpu", "value": "research", "effect": "NoExecute"}


def test_the_operator_runs_on_a_control_plane_alone_and_on_a_plain_linux_box(render: Render) -> None:
    (pod,) = pods(render("--set", "operator.replicas=1"), "operator")
    assert fits(pod, LINUX, [CONTROL_PLANE])
    assert fits(pod, LINUX, [])
    assert not fits(pod, MAC, [MACOS])
    assert not fits(pod, LINUX, [OWN])


def test_the_operator_runs_on_macs_only(render: Render) -> None:
    objects = render("--set", "operator.replicas=1,operator.runtimeClassName=macos")
    (pod,) = pods(objects, "operator")
    (runtime,) = [item["scheduling"] for item in objects if item["kind"] == "RuntimeClass"]
    assert pod["runtimeClassName"] == "macos"
    # As the admission of RuntimeClasses merges them.
    merged = {"nodeSelector": runtime["nodeSelector"] | pod.get("nodeSelector", {})}
    merged["tolerations"] = [*runtime["tolerations"], *pod["tolerations"]]
    assert fits(merged, MAC, [MACOS])
    assert not fits(merged, LINUX, [])


@pytest.mark.parametrize("component", ["agent", "router"])
def test_every_mac_has_an_agent_and_a_router_whatever_its_taints(
    rendered: Callable[[Json], list[Json]], component: str
) -> None:
    pod = pods(rendered({"router": ROUTERS}), component)[0]
    assert fits(pod, MAC, [MACOS, OWN])
    assert not fits(pod, LINUX, [])


def test_values_reach_the_pods_of_each_component(rendered: Callable[[Json], list[Json]]) -> None:
    own: Json = {
        "nodeSelector": {"example.com/pool": "system"},
        "tolerations": [{"key": "example.com/gpu", "operator": "Equal", "value": "research", "effect": "NoExecute"}],
        "priorityClassName": "important",
        "podLabels": {"example.com/team": "ml", "app.kubernetes.io/component": "mine"},
        "podAnnotations": {"example.com/note": "1"},
        "serviceAccount": {"annotations": {"example.com/role": "reader"}},
        "extraEnv": [{"name": "TZ", "value": "UTC"}],
    }
    objects = rendered(
        {
            "imagePullSecrets": [{"name": "registry"}],
            "commonLabels": {"example.com/owner": "me"},
            "namespaceOverride": "elsewhere",
            "operator": own,
            "agent": own,
            "router": own | ROUTERS,
        }
    )
    for component in WORKLOADS:
        (account,) = [
            item
            for item in objects
            if (item["kind"], item["metadata"]["name"]) == ("ServiceAccount", f"thunderfleet-{component}")
        ]
        assert account["metadata"]["annotations"] == {"example.com/role": "reader"}
        for workload in workloads(objects, component):
            template = workload["spec"]["template"]
            labels, pod = template["metadata"]["labels"], template["spec"]
            assert workload["spec"]["selector"]["matchLabels"].items() <= labels.items(), "podLabels do not replace ours"
            assert labels["example.com/team"] == "ml"
            assert template["metadata"]["annotations"].items() >= {("example.com/note", "1")}
            assert "prometheus.io/port" in template["metadata"]["annotations"]
            assert (pod["priorityClassName"], pod["imagePullSecrets"]) == ("important", [{"name": "registry"}])
            assert {"name": "TZ", "value": "UTC"} in pod["containers"][0]["env"]
            assert {"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}} in pod["containers"][0]["env"]
            if (workload["kind"], component) != ("DaemonSet", "router"):
                assert pod["nodeSelector"].items() >= own["nodeSelector"].items()
                assert tolerates(pod, OWN)
    for item in objects:
        # What routers may read of kubelets is in the namespace of these.
        of_kubelets = item["metadata"]["name"] == "thunderfleet-router-leases"
        assert item["metadata"].get("namespace", "elsewhere") == ("kube-node-lease" if of_kubelets else "elsewhere")
        if item["kind"] != "CustomResourceDefinition":
            assert item["metadata"]["labels"]["example.com/owner"] == "me", item["metadata"]["name"]
    text = yamltext.dump_all(objects)
    assert "system:serviceaccount:thunderfleet-system:" not in text
    assert "system:serviceaccount:elsewhere:thunderfleet-operator" in text


@pytest.mark.parametrize("component", ["operator", "router"])
def test_containers_need_no_rights(rendered: Callable[[Json], list[Json]], component: str) -> None:
    for pod in pods(rendered({"router": ROUTERS}), component):
        assert pod["containers"][0]["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        }


def test_common_labels_replace_none_of_ours(rendered: Callable[[Json], list[Json]]) -> None:
    common = {"app.kubernetes.io/component": "mine", "app.kubernetes.io/name": "mine", "example.com/owner": "me"}
    objects = rendered({"router": ROUTERS, "commonLabels": common})
    for component in WORKLOADS:
        for workload in workloads(objects, component):
            for metadata in (workload["metadata"], workload["spec"]["template"]["metadata"]):
                labels = metadata["labels"]
                assert labels["app.kubernetes.io/component"] == component
                assert labels["app.kubernetes.io/name"] == "thunderfleet"
                assert labels["example.com/owner"] == "me"


def test_annotations_of_pods_can_end_their_scraping(helm: Helm, chart: Path, tmp_path: Path) -> None:
    """The text has each key once: some tools refuse a document that repeats one."""
    own = {"podAnnotations": {"prometheus.io/scrape": "false"}}
    file = tmp_path / "values.yaml"
    file.write_text(yamltext.dump({"operator": own, "agent": own, "router": own | ROUTERS}))
    text = helm("template", "thunderfleet", chart, "--values", file).stdout
    assert text.count("prometheus.io/scrape") == text.count('prometheus.io/scrape: "false"') == 4


@pytest.mark.parametrize("component", ["operator", "router"])
def test_containers_on_linux_have_a_folder_for_temporary_files(rendered: Callable[[Json], list[Json]], component: str) -> None:
    """Their root is read-only, and the ssl module loads keys from files only."""
    on_linux = [pod for pod in pods(rendered({"router": ROUTERS}), component) if pod["nodeSelector"] == LINUX]
    assert on_linux
    for pod in on_linux:
        (container,) = pod["containers"]
        (folder,) = [one["value"] for one in container["env"] if one["name"] == "TMPDIR"]
        (mount,) = [one for one in container["volumeMounts"] if one["mountPath"] == folder]
        (volume,) = [one for one in pod["volumes"] if one["name"] == mount["name"]]
        assert "emptyDir" in volume and not mount.get("readOnly")


def test_values_of_an_older_release_still_work(rendered: Callable[[Json], list[Json]]) -> None:
    """``helm upgrade --reuse-values`` has none of the new values."""
    new = ("nodeSelector", "tolerations", "priorityClassName", "podLabels", "podAnnotations", "serviceAccount", "extraEnv")
    none = dict.fromkeys((*new, "podSecurityContext", "securityContext"))
    older: Json = {"imagePullSecrets": None, "namespaceOverride": None, "commonLabels": None, "pods": {"allowed": None}}
    older |= {"alerts": {"enabled": True, "backupDays": None}}
    router = none | ROUTERS | {"page": None, "tracing": None}
    objects = rendered(older | {"operator": none, "agent": dict.fromkeys(new), "router": router})
    (agent,) = pods(objects, "agent")
    assert agent["priorityClassName"] == "system-node-critical"
    assert fits(agent, MAC, [MACOS])
    assert "securityContext" not in pods(objects, "operator")[0]["containers"][0]


def rights(objects: list[Json], name: str) -> set[tuple[str, str]]:
    (role,) = [item for item in objects if (item["kind"], item["metadata"]["name"]) == ("ClusterRole", name)]
    assert {group for rule in role["rules"] for group in rule["apiGroups"]} == {"thunderfleet.io"}
    return {(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}


def test_users_of_namespaces_write_what_is_theirs_and_no_status(render: Render) -> None:
    objects = render()
    edit, view = rights(objects, "thunderfleet-edit"), rights(objects, "thunderfleet-view")
    assert {verb for _, verb in view} == {"get", "list", "watch"}
    assert {resource for resource, _ in edit} == {"modeldeployments", "modelcaches", "modeldeployments/scale"}
    assert not {resource for resource, _ in edit | view} & {"nodeprofiles", "thunderboltlinks"}, "those belong to no namespace"


def mac_pods(objects: list[Json]) -> Json:
    """The spec of the policy for pods on Macs."""
    policies = [item for item in objects if item["kind"] == "ValidatingAdmissionPolicy"]
    (policy,) = [item for item in policies if item["metadata"]["name"] == "thunderfleet-mac-pods"]
    spec: Json = policy["spec"]
    return spec


@pytest.mark.parametrize("allowed", ["Anyone", "Operator"])
def test_what_the_kubelet_puts_before_other_programs_is_the_operators(render: Render, allowed: str) -> None:
    spec = mac_pods(render("--set", f"pods.allowed={allowed}"))
    variables = {one["name"]: one["expression"] for one in spec["variables"]}
    for kind in ("containers", "initContainers", "ephemeralContainers"):
        assert f"object.spec.?{kind}." in variables["first"]
    assert variables["first"].count(f"'{CAPABILITY_FIRST}' in ") == 3
    (validation,) = [one for one in spec["validations"] if "variables.first" in one["expression"]]
    account = "system:serviceaccount:thunderfleet-system:thunderfleet-operator"
    expected = f"variables.first.size() == 0 || request.userInfo.username == '{account}'"
    assert validation["expression"].split() == expected.split()


def test_pods_on_macs_are_the_operators_if_the_value_says_so(render: Render) -> None:
    def validations(*words: str) -> list[Json]:
        found: list[Json] = mac_pods(render(*words))["validations"]
        return found

    before, after = validations(), validations("--set", "pods.allowed=Operator")
    assert after[1:] == before
    assert "system:serviceaccount:thunderfleet-system:thunderfleet-operator" in after[0]["expression"]
    assert "create a ModelDeployment" in after[0]["message"]


# As a managed cluster names its versions, too.
SUPPORTED = ("1.32.0", "1.32.5-gke.1000", "1.33.1-eks-5d4a308", "1.34.2+k3s1", "1.36.3", "1.40.0")


@pytest.mark.parametrize("version", SUPPORTED)
def test_the_chart_installs_where_it_can_work(helm: Helm, chart: Path, version: str) -> None:
    done = helm("template", "thunderfleet", chart, "--kube-version", version, "--show-only", "templates/operator.yaml")
    assert done.returncode == 0, done.stderr


def test_an_older_cluster_is_refused_with_the_versions_that_work(helm: Helm, chart: Path) -> None:
    done = helm("template", "thunderfleet", chart, "--kube-version", "1.31.9")
    assert done.returncode != 0
    assert "chart requires kubeVersion: >=1.32.0-0" in done.stderr


REFUSED = [
    ("operator.tolerations[0].effect=Never", "value must be one of 'NoSchedule', 'PreferNoSchedule', 'NoExecute'"),
    ("operator.tolerations[0].operater=Exists", "additional properties 'operater' not allowed"),
    ("agent.nodeSelector.pool=1", "at '/agent/nodeSelector/pool': got number, want string"),
    ("router.priorityClassName=Not Valid", "at '/router/priorityClassName': 'Not Valid' does not match pattern"),
    ("imagePullSecrets={registry}", "at '/imagePullSecrets/0': got string, want object"),
    ("namespaceOverride=Mine", "at '/namespaceOverride': 'Mine' does not match pattern"),
    ("operator.extraEnv[0].value=x", "at '/operator/extraEnv/0': missing property 'name'"),
    ("agent.securityContext.privileged=true", "at '/agent': additional properties 'securityContext' not allowed"),
    ("pods.allowed=Nobody", "at '/pods/allowed': value must be one of 'Anyone', 'Operator'"),
]


@pytest.mark.parametrize(("value", "sentence"), REFUSED, ids=[value for value, _ in REFUSED])
def test_bad_values_are_refused_with_a_sentence(helm: Helm, chart: Path, value: str, sentence: str) -> None:
    done = helm("template", "thunderfleet", chart, "--set", value)
    assert done.returncode != 0
    assert sentence in done.stderr


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {"thunderfleet-operator": {}}),
        ({"operator": {"replicas": 1}}, {}),
        ({"router": {"enabled": True}}, {"thunderfleet-operator": {}}),
        ({"router": {**ROUTERS, "linuxReplicas": 1}}, {"thunderfleet-operator": {}}),
        (
            {"router": {**ROUTERS, "linuxReplicas": 2}},
            {"thunderfleet-operator": {}, "thunderfleet-router": {"thunderfleet.io/router": "linux"}},
        ),
    ],
)
def test_budgets_hold_up_no_drain_of_a_mac_or_of_the_only_replica(
    rendered: Callable[[Json], list[Json]], values: Json, expected: Json
) -> None:
    objects = rendered(values)
    found = {item["metadata"]["name"]: item["spec"] for item in objects if item["kind"] == "PodDisruptionBudget"}
    assert set(found) == set(expected)
    for name, extra in expected.items():
        assert found[name]["maxUnavailable"] == 1
        selected = found[name]["selector"]["matchLabels"]
        assert extra.items() <= selected.items()
        (template,) = [
            item["spec"]["template"]["metadata"]["labels"]
            for item in objects
            if item["kind"] == "Deployment" and item["metadata"]["name"] == name
        ]
        assert selected.items() <= template.items()
