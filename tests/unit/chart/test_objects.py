"""The chart's objects: RBAC rules without wildcards, valid command lines, and native pods."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_agent import cli as agent_cli
from thunderfleet_agent.measure.schedule.settings import MeasureSettings, parse
from thunderfleet_crds.kinds.thunderboltlink import SUMMARY_FIELDS
from thunderfleet_crds.names import (
    ANNOTATION_HASH,
    ANNOTATION_PORTS,
    ANNOTATION_REASON,
    ANNOTATION_SIGNATURE,
    LABEL_CACHE,
    LABEL_DEPLOYMENT,
    LABEL_EPOCH,
    LABEL_GROUP,
    LABEL_MANAGED_BY,
    LABEL_NAME,
    LABEL_RANK,
    MANAGED_BY,
    RUNNER_NAME,
)
from thunderfleet_lib.csr.names import SERVING_SIGNER
from thunderfleet_operator import cli as operator_cli
from thunderfleet_operator.act.controllers.certificate import ENDPOINTS, SERVICE
from thunderfleet_operator.act.operator_key import KEY_SECRET
from thunderfleet_operator.decide.manifests import GATEWAY_PORT
from thunderfleet_operator.watch.cache import CACHED
from thunderfleet_operator.watch.components import COMPONENTS
from thunderfleet_operator.watch.leader import LEASE_NAME

Json = dict[str, Any]
Render = Callable[..., list[Json]]


def find(objects: list[Json], kind: str, name: str) -> Json:
    (found,) = (item for item in objects if item["kind"] == kind and item["metadata"]["name"] == name)
    return found


def granted(role: Json) -> set[tuple[str, str, str]]:
    """(group, resource, verb) of a role."""
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def command_line(workload: Json) -> list[str]:
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    words: list[str] = [*container["command"], *container["args"]]
    return words


def test_what_runs_counts_as_ready_soon_and_has_a_minute_to_start(render: Render) -> None:
    """`helm --wait` waits for it, and so does a rollout with each replica."""
    workloads = [
        item for item in render("--set", "router.enabled=true,router.linuxReplicas=1") if "template" in item.get("spec", {})
    ]
    containers = [one for item in workloads for one in item["spec"]["template"]["spec"]["containers"]]
    assert len(containers) == len(workloads) == 4
    for container in containers:
        starts, serves, lives = (container.get(f"{kind}Probe", {}) for kind in ("startup", "readiness", "liveness"))
        assert (starts or serves)["periodSeconds"] <= 2
        allowed = starts.get("periodSeconds", 0) * starts.get("failureThreshold", 0) or lives["initialDelaySeconds"]
        assert allowed + lives["periodSeconds"] * (lives["failureThreshold"] - 1) >= 60


def test_no_right_is_a_wildcard_and_none_is_granted_twice(render: Render) -> None:
    roles = [item for item in render() if item["kind"] in ("Role", "ClusterRole")]
    assert len(roles) == 8
    for role in roles:
        words = [word for rule in role["rules"] for key in ("apiGroups", "resources", "verbs") for word in rule[key]]
        assert not [word for word in words if "*" in word]
        triples = [
            (group, resource, verb, *rule.get("resourceNames", []))
            for rule in role["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        ]
        assert len(triples) == len(set(triples))


def test_every_role_is_bound_to_its_own_account(render: Render) -> None:
    objects = render()
    for item in objects:
        if item["kind"] in ("RoleBinding", "ClusterRoleBinding"):
            assert find(objects, item["roleRef"]["kind"], item["roleRef"]["name"])
            (subject,) = item["subjects"]
            if item["metadata"]["name"] == "thunderfleet-kubelet":
                assert (subject["kind"], subject["name"]) == ("Group", "system:nodes"), "kubelets have no account of their own"
                continue
            account = find(objects, "ServiceAccount", subject["name"])
            assert subject["namespace"] == account["metadata"]["namespace"]


def test_the_operator_may_watch_what_it_caches_and_no_more(render: Render) -> None:
    rights = granted(find(render(), "ClusterRole", "thunderfleet-operator"))
    cached = {(c.prefix.removeprefix("/api/v1").removeprefix("/apis/").partition("/")[0], c.name) for c in CACHED}
    for verb in ("list", "watch"):
        assert {(group, resource) for group, resource, v in rights if v == verb} == cached
    assert not [right for right in rights if right[1] == "secrets" and right[2] in ("get", "list", "watch", "update")]


def test_the_operators_own_names_are_those_of_its_code(render: Render) -> None:
    role = find(render(), "Role", "thunderfleet-operator")
    names = {
        resource: rule["resourceNames"] for rule in role["rules"] for resource in rule["resources"] if "resourceNames" in rule
    }
    assert names == {"leases": [LEASE_NAME], "secrets": [KEY_SECRET]}


def test_the_operator_approves_for_one_signer_and_reads_few_objects_past_its_cache(render: Render) -> None:
    role = find(render(), "ClusterRole", "thunderfleet-operator")
    limited = {
        (resource, verb): rule["resourceNames"]
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if "resourceNames" in rule
    }
    read = {path.rsplit("/", 2)[1]: [path.rsplit("/", 1)[1]] for path in (SERVICE, ENDPOINTS)} | {"leases": [*COMPONENTS]}
    assert limited == {("signers", "approve"): [SERVING_SIGNER], **{(kind, "get"): names for kind, names in read.items()}}
    unlimited = [rule for rule in role["rules"] if "resourceNames" not in rule]
    assert not [rule for rule in unlimited if "get" in rule["verbs"] or "signers" in rule["resources"]]


def test_the_operators_names_are_reserved_for_it(render: Render) -> None:
    policy = find(render(), "ValidatingAdmissionPolicy", "thunderfleet-operator-objects")
    lists = {variable["name"]: ast.literal_eval(variable["expression"]) for variable in policy["spec"]["variables"][-2:]}
    assert lists == {
        "reservedLabels": [LABEL_DEPLOYMENT, LABEL_GROUP, LABEL_EPOCH, LABEL_RANK, LABEL_CACHE],
        "reservedAnnotations": [ANNOTATION_HASH, ANNOTATION_PORTS, ANNOTATION_REASON, ANNOTATION_SIGNATURE],
    }
    assert any(LABEL_MANAGED_BY in v["expression"] and MANAGED_BY in v["expression"] for v in policy["spec"]["variables"])
    rules = policy["spec"]["matchConstraints"]["resourceRules"]
    assert {resource for rule in rules for resource in rule["resources"]} >= {"configmaps", "secrets", "services", "pods"}
    off = render("--set", "operator.reserveObjects=false")
    assert not [item for item in off if item["metadata"]["name"].startswith("thunderfleet-operator-objects")]
    older = render("--set", "operator.reserveObjects=null")
    assert find(older, "ValidatingAdmissionPolicy", "thunderfleet-operator-status"), "values of an older release have none"


@pytest.mark.parametrize("side", ["old", "new"])
def test_no_agent_writes_what_the_operator_derives_for_a_link(render: Render, side: str) -> None:
    policy = find(render(), "ValidatingAdmissionPolicy", "thunderfleet-agent-thunderboltlinks")
    (compared,) = (one["expression"] for one in policy["spec"]["variables"] if one["name"] == f"{side}Summary")
    message = next(one["message"] for one in policy["spec"]["validations"] if "Summary" in one["expression"])
    for field in SUMMARY_FIELDS:
        missing = f"add {field} to $summary in templates/admission.yaml: otherwise every agent may write it"
        assert f".status.{field})" in compared and field in message, missing


def test_the_agent_deletes_nothing_and_touches_only_its_kinds(render: Render) -> None:
    rights = granted(find(render(), "ClusterRole", "thunderfleet-agent"))
    assert {verb for _, _, verb in rights} <= {"get", "list", "watch", "create", "patch"}
    # Its own profile, for the groups that have its Mac; a thousand agents that watched links would be a million events.
    watched = {right for right in rights if right[2] == "watch"}
    assert watched == {("thunderfleet.io", name, "watch") for name in ("nodeprofiles", "modelcaches")}
    written = {(group, resource) for group, resource, verb in rights if verb in ("create", "patch")}
    assert {group for group, _ in written} == {"thunderfleet.io"}


@pytest.mark.parametrize(
    "values", [(), ("--set", "operator.runtimeClassName=macos,operator.logLevel=debug,image.pullPolicy=Always")]
)
def test_the_programs_take_the_command_lines(render: Render, values: tuple[str, ...]) -> None:
    objects = render(*values)
    program, *words = command_line(find(objects, "Deployment", "thunderfleet-operator"))
    assert program == "thunderfleet-operator"
    told = operator_cli.parser().parse_args(words)
    assert (told.ports.first, told.ports.last) == (20000, 20999)
    assert (told.ring_ports.first, told.ring_ports.last) == (21000, 29999)
    image = find(objects, "Deployment", "thunderfleet-operator")["spec"]["template"]["spec"]["containers"][0]
    assert (told.runner_image, told.runner_pull_policy) == (image["image"], image["imagePullPolicy"])
    program, *words = command_line(find(objects, "DaemonSet", "thunderfleet-agent"))
    assert program == "thunderfleet-agent"
    told = agent_cli._parser().parse_args(words)
    assert told.model_folder == [Path("/Users/Shared/models")]
    container = find(objects, "DaemonSet", "thunderfleet-agent")["spec"]["template"]["spec"]["containers"][0]
    assert [port["containerPort"] for port in container["ports"]] == [told.listen_port, told.metrics_port]
    assert parse(told.measure) == MeasureSettings()


def test_what_is_measured_is_the_chart_s_to_say(render: Render) -> None:
    said = {
        **{"enabled": "false", "spreadSeconds": 5, "bytesPerMinute": 2**21, "gpu.enabled": "false", "memory.everySeconds": 60},
        **{"sockets.bytes": 2**20, "sockets.cableBytes": 2**36, "sockets.streams": 2, "rdma.transport": "Ring"},
    }
    values = [word for name, value in said.items() for word in ("--set", f"agent.measure.{name}={value}")]
    _, *words = command_line(find(render(*values), "DaemonSet", "thunderfleet-agent"))
    found = parse(agent_cli._parser().parse_args(words).measure)
    assert (found.enabled, found.spread_seconds, found.bytes_per_minute) == (False, 5, 2**21)
    assert (found.gpu.enabled, found.memory.every_seconds, found.rdma.transport) == (False, 60, "Ring")
    assert (found.sockets.bytes, found.sockets.cable_bytes, found.sockets.streams) == (2**20, 2**36, 2)


def test_pods_use_the_host_network_and_declare_their_ports(render: Render) -> None:
    """A Mac's kubelet runs no other pods, and the scheduler counts only declared ports."""
    objects = render()
    for kind, name in (("Deployment", "thunderfleet-operator"), ("DaemonSet", "thunderfleet-agent")):
        template = find(objects, kind, name)["spec"]["template"]
        assert template["spec"]["hostNetwork"] is True
        for port in template["spec"]["containers"][0]["ports"]:
            assert port["containerPort"] == port["hostPort"]
        scraped = template["metadata"]["annotations"]["prometheus.io/port"]
        assert scraped in [str(port["containerPort"]) for port in template["spec"]["containers"][0]["ports"]]
    operator = find(objects, "Deployment", "thunderfleet-operator")
    assert operator["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    agent = find(objects, "DaemonSet", "thunderfleet-agent")["spec"]["template"]["spec"]
    runtime = find(objects, "RuntimeClass", "macos")["scheduling"]
    assert (agent["nodeSelector"], agent["tolerations"][:1]) == (runtime["nodeSelector"], runtime["tolerations"])
    assert {"operator": "Exists"} in agent["tolerations"], "an agent runs on every Mac, whatever its taints"


def test_monitors_select_pods_that_are_made_and_ports_that_they_have(render: Render) -> None:
    assert not [item for item in render() if item["kind"] == "PodMonitor"]
    objects = render("--set", "podMonitors.enabled=true,podMonitors.labels.release=prometheus")
    for kind, component in (("Deployment", "operator"), ("DaemonSet", "agent")):
        monitor = find(objects, "PodMonitor", f"thunderfleet-{component}")
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        template = find(objects, kind, f"thunderfleet-{component}")["spec"]["template"]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        ports = {port["name"]: str(port["containerPort"]) for port in template["spec"]["containers"][0]["ports"]}
        assert ports[endpoint["port"]] == template["metadata"]["annotations"]["prometheus.io/port"]
    runner = find(objects, "PodMonitor", "thunderfleet-runner")["spec"]
    assert runner["selector"]["matchLabels"] == {LABEL_NAME: RUNNER_NAME}
    assert [endpoint["port"] for endpoint in runner["podMetricsEndpoints"]] == [GATEWAY_PORT]
    assert runner["podTargetLabels"] == [LABEL_DEPLOYMENT, LABEL_GROUP, LABEL_RANK]
    assert runner["namespaceSelector"] == {"any": True}


def test_crds_are_kept(render: Render) -> None:
    crds = [item for item in render() if item["kind"] == "CustomResourceDefinition"]
    assert len(crds) == 4
    for crd in crds:
        assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_the_check_of_helm_test_is_python_with_only_our_imports(render: Render, chart: Path) -> None:
    pod = find(render(), "Pod", "thunderfleet-test")
    (container,) = pod["spec"]["containers"]
    assert container["args"] == [(chart / "files" / "check.py").read_text()]
    assert "$(" not in container["args"][0], "the kubelet would expand it"
    tree = ast.parse(container["args"][0])
    assert {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)} == {"thunderfleet_lib.kube"}
    hooks = [item for item in render() if "helm.sh/hook" in item["metadata"].get("annotations", {})]
    assert len(hooks) == 6
    for item in hooks:
        assert (
            item["metadata"]["annotations"]["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded,hook-failed"
        )
