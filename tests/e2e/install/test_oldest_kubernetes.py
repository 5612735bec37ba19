"""The chart on the oldest version of Kubernetes that it can be installed on: what works, and what is said about the rest."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.conftest import DESK
from tests.support.line import Alone, Deploy, Line, on_fleet
from tests.support.otherprojects import oldkubernetes
from tests.support.waiting import until

pytestmark = pytest.mark.soak
PROMPT = "Which Macs are wired together?"
TENANT = "old-tenant"
CONTAINER: dict[str, Any] = {"name": "main", "image": "thunderfleet/thunderfleet:0.1.0"}


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    """The desk with an older control plane; etcd, kubectl and Helm are those of other tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBEBUILDER_ASSETS", str(oldkubernetes.folder(tmp_path_factory.mktemp("old") / "programs")))
        with on_fleet(DESK, "oldest", "", "operator.replicas=1") as found:
            yield found


def raw(line: Line, path: str) -> Any:
    return json.loads(line.kubectl("get", "--raw", path))


def test_a_model_is_served_and_its_streams_say_what_they_need(line: Line, deploy: Deploy, alone: Alone) -> None:
    assert raw(line, "/version")["gitVersion"] == oldkubernetes.VERSION
    served = deploy("old", parallelism="Pipeline", transport="Ring").until_ready()
    assert served.tokens(PROMPT, 16) == alone(PROMPT, 16)
    pod = served.ranks()[0]["pod"]
    served.kubectl("label", "pod", pod, "team=one")
    assert served.kubectl("logs", pod, "--tail=5").strip()
    done = line.cluster.kubectl("exec", "-n", served.name, pod, "--", "true", check=False)
    assert done.returncode and "ExtendWebSocketsToKubelet (Kubernetes 1.36 or later)" in done.stderr, done.stderr
    until(lambda: raw(line, f"/api/v1/nodes/{line.macs[0]}/proxy/stats/summary")["node"], "figures of a Mac")


@pytest.mark.parametrize(
    "dirty",
    [
        {"securityContext": {"runAsUser": 0}},
        {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]},
        {"priorityClassName": "system-node-critical"},
        {"containers": [{**CONTAINER, "securityContext": {"capabilities": {"add": ["SYS_NICE"]}}}]},
    ],
    ids=("root", "hostPath", "priority", "nice"),
)
def test_the_policies_for_pods_on_macs_are_enforced(line: Line, dirty: dict[str, Any]) -> None:
    line.kubectl("create", "namespace", TENANT)
    try:
        line.kubectl("label", "namespace", TENANT, "pod-security.kubernetes.io/enforce=privileged")
        line.kubectl("create", "rolebinding", "author", "--clusterrole=edit", "--user=tenant", "-n", TENANT)
        spec = {
            "runtimeClassName": "macos",
            "hostNetwork": True,
            "containers": [CONTAINER],
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "dirty", "namespace": TENANT}, "spec": spec | dirty}
        words = ("--as=tenant", "create", "--dry-run=server", "-f", "-")
        until(
            lambda: "thunderfleet-mac-pods" in line.cluster.kubectl(*words, text=json.dumps(pod), check=False).stderr,
            "the policy refuses the pod",
        )
    finally:
        line.kubectl("delete", "namespace", TENANT, "--wait=false")
        until(lambda: TENANT not in line.kubectl("get", "namespaces", "-o", "name"), "the namespace is gone")
