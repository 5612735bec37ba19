"""The objects of a placement, whole: what a runner pod may do is decided here and nowhere else."""

import json
from typing import Any

from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_operator.decide import manifests
from thunderfleet_operator.decide.manifests import PodSettings
from thunderfleet_operator.decide.placing.request import spec_hash
from thunderfleet_operator.observe.objects.proofs import Keyring

from tests.unit.operator.values import plan

KEYS = Keyring(b"k" * 32)
OWNER = {
    "apiVersion": "thunderfleet.io/v1alpha1",
    "kind": "ModelDeployment",
    "name": "md",
    "uid": "uid",
    "controller": True,
    "blockOwnerDeletion": False,
}


def deployment(**spec: Any) -> ModelDeployment:
    metadata = {"name": "md", "namespace": "ns", "uid": "uid", "generation": 1}
    return ModelDeployment.load({"metadata": metadata, "spec": {"model": {"repository": "org/tiny"}, **spec}})


def common(rank: str | None = None) -> dict[str, str]:
    labels = {
        "thunderfleet.io/deployment": "md",
        "app.kubernetes.io/managed-by": "thunderfleet-operator",
        "app.kubernetes.io/name": "thunderfleet-runner",
        "thunderfleet.io/group": "0",
        "thunderfleet.io/epoch": "1",
    }
    return labels if rank is None else {**labels, "thunderfleet.io/rank": rank}


def without_signature(made: dict[str, Any]) -> dict[str, Any]:
    assert made["metadata"]["annotations"].pop("thunderfleet.io/signature")
    return made


def test_the_pod_of_a_rank() -> None:
    made = manifests.pod(deployment(), plan(), 0, PodSettings("image:1"), "md-0-e1-keys", KEYS)
    get = {"host": "10.0.0.1", "port": 20000, "scheme": "HTTP"}
    container = {
        "name": "runner",
        "image": "image:1",
        "imagePullPolicy": "IfNotPresent",
        "command": ["thunderfleet-runner", "serve"],
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
        "ports": [
            {"name": "http", "containerPort": 20000, "hostPort": 20000, "protocol": "TCP"},
            {"name": "control", "containerPort": 20001, "hostPort": 20001, "protocol": "TCP"},
            {"name": "ring-0", "containerPort": 21000, "hostPort": 21000, "protocol": "TCP"},
            {"name": "ring-1", "containerPort": 21001, "hostPort": 21001, "protocol": "TCP"},
        ],
        "resources": {"requests": {"memory": "100"}},
        "securityContext": {"capabilities": {"add": ["SYS_NICE"]}},
        "readinessProbe": {
            "httpGet": {**get, "path": "/readyz"},
            "periodSeconds": 2,
            "timeoutSeconds": 5,
            "failureThreshold": 2,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "startupProbe": {
            "httpGet": {**get, "path": "/healthz"},
            "periodSeconds": 1,
            "timeoutSeconds": 5,
            "failureThreshold": 60,
        },
        "livenessProbe": {
            "httpGet": {**get, "path": "/healthz"},
            "periodSeconds": 2,
            "timeoutSeconds": 3,
            "failureThreshold": 2,
            "terminationGracePeriodSeconds": 1,
        },
        "volumeMounts": [
            {"name": "plan", "mountPath": "/etc/thunderfleet/plan", "readOnly": True},
            {"name": "keys", "mountPath": "/etc/thunderfleet/keys", "readOnly": True},
            {"name": "model", "mountPath": "/model", "readOnly": True},
        ],
    }
    on_its_mac = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}
    assert without_signature(made) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "md-0-e1-0",
            "namespace": "ns",
            "labels": common("0"),
            "ownerReferences": [OWNER],
            "annotations": {
                "thunderfleet.io/ports": json.dumps({"gateway": 20000, "control": 20001, "ring": [21000, 21001]}),
                "thunderfleet.io/start-at-boot": "true",
                "prometheus.io/scrape": "true",
                "prometheus.io/port": "20000",
            },
        },
        "spec": {
            "runtimeClassName": "macos",
            "hostNetwork": True,
            "dnsPolicy": "Default",
            "enableServiceLinks": False,
            "restartPolicy": "Always",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 40,
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [on_its_mac]}}
            },
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
                {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"},
            ],
            "containers": [container],
            "volumes": [
                {"name": "plan", "configMap": {"name": "md-0-e1"}},
                {"name": "keys", "secret": {"secretName": "md-0-e1-keys", "defaultMode": 0o440}},
                {"name": "model", "hostPath": {"path": "/models/tiny", "type": "Directory"}},
            ],
        },
    }


def test_what_the_deployment_and_the_settings_change_in_a_pod() -> None:
    wanted = deployment(
        server={"apiKeySecret": "accepted"},
        nodes={"tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]},
    )
    plain = manifests.pod(deployment(), plan(), 1, PodSettings("image:1"), "keys", KEYS)["spec"]
    spec = manifests.pod(wanted, plan(), 1, PodSettings("image:2", "Always", "other"), "keys", KEYS)["spec"]
    (container,), (before,) = spec["containers"], plain["containers"]
    assert (spec["runtimeClassName"], container["image"], container["imagePullPolicy"]) == ("other", "image:2", "Always")
    assert spec["volumes"][:-1] == plain["volumes"]
    assert spec["volumes"][-1] == {"name": "api-key", "secret": {"secretName": "accepted", "defaultMode": 0o440}}
    assert container["volumeMounts"][:-1] == before["volumeMounts"]
    assert container["volumeMounts"][-1] == {"name": "api-key", "mountPath": "/etc/thunderfleet/api-key", "readOnly": True}
    assert spec["tolerations"][:-1] == plain["tolerations"]
    assert spec["tolerations"][-1] == {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}


def test_the_config_map_of_a_plan() -> None:
    made = manifests.config_map(deployment(), plan(), "hash", "why" + "x" * 5000, KEYS)
    text = made["data"].pop("plan.json")
    assert type(plan()).model_validate_json(text) == plan()
    assert without_signature(made) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "md-0-e1",
            "namespace": "ns",
            "labels": common(),
            "ownerReferences": [OWNER],
            "annotations": {"thunderfleet.io/hash": "hash", "thunderfleet.io/reason": "why" + "x" * 4093},
        },
        "immutable": True,
        "data": {},
    }


def test_the_secret_of_a_placement() -> None:
    assert manifests.secret(plan(), "map-uid", "md-0-e1-keys", "cert", "key") == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": "md-0-e1-keys",
            "namespace": "ns",
            "labels": common(),
            "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "md-0-e1", "uid": "map-uid"}],
        },
        "type": "kubernetes.io/tls",
        "immutable": True,
        "data": {"tls.crt": "Y2VydA==", "tls.key": "a2V5"},
    }


def test_the_name_that_clients_use() -> None:
    assert manifests.served_name(deployment()) == "org/tiny"
    by_path = {"model": {"path": "/models/org/tiny/"}}
    metadata = {"name": "md", "namespace": "ns", "uid": "uid", "generation": 1}
    assert manifests.served_name(ModelDeployment.load({"metadata": metadata, "spec": by_path})) == "org/tiny"


def test_the_same_placement_under_another_epoch() -> None:
    again = manifests.renumbered(plan(), 7)
    assert (again.epoch, again.name, [rank.pod for rank in again.ranks]) == (7, "md-0-e7", ["md-0-e7-0", "md-0-e7-1"])
    assert again == plan().model_copy(update={"epoch": 7, "ranks": again.ranks})


def test_metadata_of_users_takes_nothing_from_the_operators() -> None:
    mine = {"team": "search", "thunderfleet.io/rank": "7", "app.kubernetes.io/name": "mine"}
    notes = {"note": "x", "thunderfleet.io/ports": "{}", "prometheus.io/port": "1"}
    wanted = deployment(podMetadata={"labels": mine, "annotations": notes}, priorityClassName="important")
    made = manifests.pod(wanted, plan(), 1, PodSettings("image:1"), "keys", KEYS)
    plain = manifests.pod(deployment(), plan(), 1, PodSettings("image:1"), "keys", KEYS)
    assert made["metadata"]["labels"] == {**common("1"), "team": "search"}
    assert made["metadata"]["annotations"] == {**plain["metadata"]["annotations"], "note": "x"}, (
        "the signature does not cover it"
    )
    assert made["spec"] == {**plain["spec"], "priorityClassName": "important"}


def test_a_queue_admits_the_pods_of_a_placement_together() -> None:
    wanted = deployment(podMetadata={"labels": {"kueue.x-k8s.io/queue-name": "macs"}})
    for made in (plan(), plan(epoch=2)):
        pods = [manifests.pod(wanted, made, rank, PodSettings("image:1"), "keys", KEYS)["metadata"] for rank in (0, 1)]
        assert {one["labels"]["kueue.x-k8s.io/queue-name"] for one in pods} == {"macs"}
        assert {one["labels"]["kueue.x-k8s.io/pod-group-name"] for one in pods} == {f"md-0-e{made.epoch}"}
        assert {one["annotations"]["kueue.x-k8s.io/pod-group-total-count"] for one in pods} == {"2"}
        assert {one["annotations"]["kueue.x-k8s.io/retriable-in-group"] for one in pods} == {"false"}


def test_metadata_and_priority_roll_no_group() -> None:
    bare = spec_hash(deployment().spec)
    for change in ({"podMetadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}}, {"priorityClassName": "high"}):
        assert spec_hash(deployment(**change).spec) == bare
