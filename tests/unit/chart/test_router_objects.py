"""The objects of routers, which the chart creates when they are enabled."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from thunderfleet_crds.exchange.routing import ROUTING_SECRET
from thunderfleet_operator import cli as operator_cli
from thunderfleet_operator.cli import _routers
from thunderfleet_operator.observe.objects.routers import is_router
from thunderfleet_router import cli as router_cli
from thunderfleet_router import tracing
from thunderfleet_router.viewers import RESOURCES

from tests.support import yamltext

from .test_objects import command_line, find

Json = dict[str, Any]
Render = Callable[..., list[Json]]

ENABLED = ("--set", "router.enabled=true")
EVERYTHING = (
    "--set",
    "router.enabled=true,router.port=4242,router.linuxReplicas=2,router.tls.secretName=cert,router.anonymousWake=true,"
    "router.externalURL=https://models.example.com/v1,router.aliases.gpt-4o=default/qwen,router.cors={https://chat.example.com},"
    "operator.demandPort=9500",
)


def rights(role: Json) -> set[tuple[str, str, str, tuple[str, ...]]]:
    return {
        (group, resource, verb, tuple(rule.get("resourceNames", ())))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_without_routers_nothing_of_them_exists_and_no_secret_is_read(render: Render) -> None:
    objects = render()
    assert not [item for item in objects if item["metadata"]["name"].startswith("thunderfleet-router")]
    cluster = rights(find(objects, "ClusterRole", "thunderfleet-operator"))
    assert {verb for _, resource, verb, _ in cluster if resource == "secrets"} == {"create"}
    words = command_line(find(objects, "Deployment", "thunderfleet-operator"))[1:]
    assert _routers(operator_cli.parser().parse_args(words)) is None


def test_routers_read_what_is_published_for_them_and_write_nothing(render: Render) -> None:
    objects = render(*ENABLED, "--set", "router.page.enabled=false")
    assert rights(find(objects, "ClusterRole", "thunderfleet-router")) == {
        ("thunderfleet.io", "modeldeployments", verb, ()) for verb in ("list", "watch")
    }
    assert not [item for item in objects if item["metadata"]["name"] == "thunderfleet-page-viewer"]
    own = rights(find(objects, "Role", "thunderfleet-router"))
    assert {verb for _, _, verb, _ in own} <= {"get", "list", "watch"}
    assert {names for _, resource, _, names in own if resource == "secrets"} == {(ROUTING_SECRET,)}


def test_the_page_adds_the_rights_to_read_the_fleet_and_to_review_tokens(render: Render) -> None:
    objects = render(*ENABLED)
    without = render(*ENABLED, "--set", "router.page.enabled=false")
    added = rights(find(objects, "ClusterRole", "thunderfleet-router")) - rights(
        find(without, "ClusterRole", "thunderfleet-router")
    )
    assert added == {
        *(("thunderfleet.io", kind, verb, ()) for kind in ("nodeprofiles", "thunderboltlinks") for verb in ("list", "watch")),
        *(("", "nodes", verb, ()) for verb in ("list", "watch")),
        ("coordination.k8s.io", "leases", "get", ("kube-scheduler", "kube-controller-manager")),
        ("authentication.k8s.io", "tokenreviews", "create", ()),
        ("authorization.k8s.io", "subjectaccessreviews", "create", ()),
    }
    # In the namespace of the release: whether operator and agents work.
    added = rights(find(objects, "Role", "thunderfleet-router")) - rights(find(without, "Role", "thunderfleet-router"))
    assert added == {
        ("coordination.k8s.io", "leases", "get", ("thunderfleet-operator",)),
        ("apps", "daemonsets", "list", ()),
        ("", "pods", "list", ()),
    }
    leases = find(objects, "Role", "thunderfleet-router-leases")
    assert leases["metadata"]["namespace"] == "kube-node-lease"
    assert rights(leases) == {("coordination.k8s.io", "leases", "list", ())}
    assert not [item for item in without if item["metadata"]["name"] == "thunderfleet-router-leases"]
    # What a viewer may do is what a router checks, and nothing that a ServiceAccount of the chart has by itself.
    viewer = rights(find(objects, "ClusterRole", "thunderfleet-page-viewer"))
    assert {(group, resource) for group, resource, _, _ in viewer} == set(RESOURCES)
    assert {verb for _, _, verb, _ in viewer} == {"list", "watch"}
    bindings = [item for item in objects if item["kind"] == "ClusterRoleBinding"]
    assert not [item for item in bindings if item["roleRef"]["name"] == "thunderfleet-page-viewer"]


def test_the_operator_gets_secrets_by_name_and_lists_none(render: Render) -> None:
    objects = render(*ENABLED)
    cluster = rights(find(objects, "ClusterRole", "thunderfleet-operator"))
    assert {verb for _, resource, verb, _ in cluster if resource == "secrets"} == {"create", "get"}
    own = rights(find(objects, "Role", "thunderfleet-operator"))
    assert ("", "secrets", "patch", (ROUTING_SECRET,)) in own
    assert not [right for right in own if right[1] == "secrets" and not right[3]]


def test_the_programs_take_the_command_lines(render: Render) -> None:
    for values in (ENABLED, EVERYTHING):
        objects = render(*values)
        named = [item for item in objects if item["metadata"]["name"] == "thunderfleet-router"]
        workloads = [item for item in named if "template" in item.get("spec", {})]
        told = operator_cli.parser().parse_args(command_line(find(objects, "Deployment", "thunderfleet-operator"))[1:])
        routers = _routers(told)
        assert routers is not None
        for workload in workloads:
            program, *words = command_line(workload)
            assert program == "thunderfleet-router"
            mine = router_cli._parser().parse_args(words)
            template = workload["spec"]["template"]
            (container,) = template["spec"]["containers"]
            assert [port["hostPort"] for port in container["ports"]] == [mine.port] == [routers.port]
            assert (mine.tls is not None) == routers.tls
            assert container["readinessProbe"]["httpGet"]["scheme"] == ("HTTPS" if routers.tls else "HTTP")
            assert is_router({"metadata": template["metadata"]})
            assert template["spec"]["hostNetwork"] and template["metadata"]["annotations"]["prometheus.io/port"] == str(
                mine.port
            )
        assert [item["kind"] for item in workloads] == ["DaemonSet", *(["Deployment"] if values is EVERYTHING else [])]
    assert routers is not None
    assert (told.demand_port, routers.url, mine.anonymous_wake) == (9500, "https://models.example.com/v1", True)
    assert mine.cors_origin == ["https://chat.example.com"]
    (aliases,) = [item for item in objects if item["metadata"]["name"] == "thunderfleet-router-aliases"]
    assert json.loads(aliases["data"]["aliases.json"]) == {"gpt-4o": "default/qwen"}


def test_routers_export_spans_to_the_collector_that_is_named(render: Render) -> None:
    def variables(*values: str) -> dict[str, str]:
        (container,) = find(render(*values), "DaemonSet", "thunderfleet-router")["spec"]["template"]["spec"]["containers"]
        return {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}

    assert not tracing.wanted(variables(*ENABLED))
    named = variables(*ENABLED, "--set", "router.tracing.endpoint=http://collector:4318")
    assert tracing.wanted(named) and "http://collector:4318" in named.values()


def test_routers_run_on_macs_as_agents_do_and_on_linux_nodes_apart(render: Render) -> None:
    objects = render(*EVERYTHING)
    mac = find(objects, "DaemonSet", "thunderfleet-router")["spec"]
    agent = find(objects, "DaemonSet", "thunderfleet-agent")["spec"]["template"]["spec"]
    assert mac["template"]["spec"]["nodeSelector"] == agent["nodeSelector"]
    assert {"operator": "Exists"} in mac["template"]["spec"]["tolerations"]
    assert {"operator": "Exists"} in agent["tolerations"]
    linux = find(objects, "Deployment", "thunderfleet-router")["spec"]
    assert linux["template"]["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux"}
    assert mac["selector"]["matchLabels"] != linux["selector"]["matchLabels"]
    for spec in (mac, linux):
        assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    service = find(objects, "Service", "thunderfleet-router")["spec"]
    for spec in (mac, linux):
        assert service["selector"].items() <= spec["template"]["metadata"]["labels"].items()


def test_values_of_an_older_release_have_no_routers(render: Render) -> None:
    objects = render("--set", "router=null,podMonitors.enabled=true")
    assert not [item for item in objects if item["metadata"]["name"].startswith("thunderfleet-router")]


def test_examples_lead_to_the_service_that_the_chart_makes(render: Render) -> None:
    """The HTTPRoute names the port by its number, which is another one with TLS, and the Ingress by its name."""
    examples = Path(__file__).parents[3] / "examples" / "outside"
    route, ingress = (yamltext.load((examples / f"{name}.yaml").read_text()) for name in ("httproute", "ingress"))
    backends = [one for rule in route["spec"]["rules"] for one in rule["backendRefs"]]
    paths = [one["backend"]["service"] for rule in ingress["spec"]["rules"] for one in rule["http"]["paths"]]
    ports = []
    for more in ((), ("--set", "router.tls.secretName=models-tls")):
        (service,) = [item for item in render(*ENABLED, *more) if item["kind"] == "Service"]
        (port,) = service["spec"]["ports"]
        ports.append(port["port"])
        for one in (route, ingress):
            assert one["metadata"]["namespace"] == service["metadata"]["namespace"]
        assert {one["name"] for one in (*backends, *paths)} == {service["metadata"]["name"]}
        assert {one["port"]["name"] for one in paths} == {port["name"]}
    assert ports == [80, 443]
    assert {one["port"] for one in backends} == {80}
