"""Invalid ModelDeployments are refused with a reason; one that cannot run yet says why, and starts once it can."""

import json
import re
import uuid
from typing import Any

import pytest
import yaml
from thunderfleet_localcluster.models import tinymodel

from tests.support.line import Deploy, Line

Json = dict[str, Any]
REPOSITORY = {"repository": "thunderfleet/tiny-qwen2"}
URI = {"uri": "https://models.example.com/tiny/", "sha256": "a" * 64}
ONE_SOURCE = (
    "set exactly one of model.repository (on the Hugging Face Hub), model.path (on the nodes) and model.uri (on a server)"
)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"model": {}}, ONE_SOURCE),
        ({"model": {**REPOSITORY, "path": "/models/tiny"}}, ONE_SOURCE),
        ({"model": {**REPOSITORY, **URI}}, ONE_SOURCE),
        ({"model": {"path": "/models/tiny", **URI}}, ONE_SOURCE),
        ({"model": {"uri": URI["uri"]}}, "model.uri and model.sha256 belong together"),
        ({"model": {**REPOSITORY, "sha256": URI["sha256"]}}, "model.uri and model.sha256 belong together"),
        ({"model": {**URI, "revision": "v1"}}, "model.revision and model.tokenSecret are for model.repository"),
        ({"model": {**URI, "tokenSecret": "hub"}}, "model.revision and model.tokenSecret are for model.repository"),
        ({"model": {**URI, "quantize": {}}}, "model.quantize needs model.repository"),
        ({"model": {**URI, "sha256": "A" * 64}}, "sha256 must be the SHA-256 of the folder's file SHA256SUMS"),
        ({"model": {**URI, "uri": "http://models.example.com/tiny/"}}, "uri must have the form https://host[:port]/folder/"),
        ({"model": {**URI, "uri": "https://user:word@models.example.com/tiny/"}}, "without user, query and fragment"),
        ({"model": {**URI, "uri": "https://models.example.com/../tiny/"}}, "uri must have the form"),
        ({"model": {"path": "models/tiny"}}, "path must be the absolute path of a folder on the nodes, without '..'"),
        ({"model": {"repository": "a/b/c"}}, "repository must have the form owner/name"),
        ({"model": {**REPOSITORY, "tokenSecret": "../../other/secrets/x"}}, "the name of a Secret has lower-case letters"),
        ({"server": {"apiKeySecret": "My_Keys"}}, "the name of a Secret has lower-case letters"),
        ({"nodes": {"min": 3, "max": 2}}, "nodes.max must be at least nodes.min; leave it unset for no maximum"),
        ({"nodes": {"min": -1}}, "spec.nodes.min in body should be greater than or equal to 1"),
        ({"replicas": -1}, "spec.replicas in body should be greater than or equal to 0"),
        ({"memory": {"contextTokens": -5}}, "spec.memory.contextTokens in body should be greater than or equal to 1"),
        ({"memory": {"headroomPercent": -1}}, "spec.memory.headroomPercent in body should be greater than or equal to 0"),
        ({"server": {"port": 70000}}, "spec.server.port in body should be less than or equal to 65535"),
        ({"recovery": {"maxRestarts": -1}}, "spec.recovery.maxRestarts in body should be greater than or equal to 0"),
        (
            {"recovery": {"backoffSeconds": 20, "backoffLimitSeconds": 10}},
            "recovery.backoffLimitSeconds must be at least recovery.backoffSeconds",
        ),
        ({"model": {**REPOSITORY, "quantize": {"bits": 7}}}, "bits must be 2, 3, 4, 5, 6 or 8"),
        ({"model": {**REPOSITORY, "quantize": {"groupSize": 48}}}, "groupSize must be 32, 64 or 128"),
        ({"model": {"path": "/m", "quantize": {}}}, "model.quantize needs model.repository"),
        ({"parallelism": "Diagonal"}, 'supported values: "Auto", "Tensor", "Pipeline"'),
        ({"transport": "Pigeon"}, 'supported values: "Auto", "JACCL", "JACCLRing", "Ring"'),
        ({"runtime": {"fastSynch": "On"}}, 'supported values: "Disabled", "Enabled"'),
        ({"runtime": {"env": [{"name": "MLX_RANK", "value": "1"}]}}, 'supported values: "MLX_BFS_MAX_WIDTH", '),
        ({"runtime": {"env": [{"name": "MLX_ENABLE_TF32", "value": "a b"}]}}, "spec.runtime.env[0].value in body should match"),
        ({"runtime": {"env": [{"name": "MLX_ENABLE_TF32", "value": "1"}] * 2}}, "Duplicate value"),
        ({"benchmark": {"every": "daily"}}, "every must be a duration in hours, minutes and seconds such as 24h or 1h30m"),
        ({"priorityClassName": "system-node-critical"}, "priorityClassName must not begin with system-"),
        ({"podMetadata": {"labels": {"thunderfleet.io/rank": "7"}}}, "kubernetes.io, k8s.io (and their subdomains) and prome"),
        ({"podMetadata": {"labels": {"kueue.x-k8s.io/pod-group-name": "a"}}}, "the operator sets Kueue's pod-group-name"),
        ({"podMetadata": {"labels": {"a b": "c"}}}, "keys must have the form prefix/name or name"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_refused_with_what_is_allowed(line: Line, spec: Json, sentence: str) -> None:
    body = {
        "apiVersion": "thunderfleet.io/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": "refused", "namespace": "default"},
        "spec": {"model": REPOSITORY, **spec},
    }
    done = line.cluster.kubectl("apply", "-f", "-", text=yaml.safe_dump(body), check=False)
    assert done.returncode != 0
    assert sentence in done.stderr
    assert line.items("md", "-n", "default") == []


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({}, "set exactly one of repository (on the Hugging Face Hub) and uri (on a server)"),
        ({"repository": "a/b", **URI}, "set exactly one of repository (on the Hugging Face Hub) and uri (on a server)"),
        ({"uri": URI["uri"]}, "uri and sha256 belong together"),
        ({**URI, "tokenSecret": "hub"}, "revision and tokenSecret are for a repository"),
        ({"repository": "a/b", "tokenSecret": "../x"}, "the name of a Secret has lower-case letters"),
        ({**URI, "quantize": {"bits": 4}}, "quantize needs a repository"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_model_caches_are_refused_with_what_is_allowed(line: Line, spec: Json, sentence: str) -> None:
    metadata = {"name": "refused", "namespace": "default"}
    body = {"apiVersion": "thunderfleet.io/v1alpha1", "kind": "ModelCache", "metadata": metadata, "spec": spec}
    done = line.cluster.kubectl("apply", "-f", "-", text=yaml.safe_dump(body), check=False)
    assert done.returncode != 0
    assert sentence in done.stderr


def test_a_host_that_the_chart_does_not_allow_is_named_with_the_value_to_set(line: Line, deploy: Deploy) -> None:
    away = deploy("away", model=URI, nodes={"min": 1, "max": 1})
    message = away.until_condition("ModelResolved", "False", "HostNotAllowed")["message"]
    assert "models.example.com: add it to the chart's value uris.hosts (allowed now: none)" in message
    away.until_condition("Stalled", "True", "HostNotAllowed")


def test_name_that_no_service_can_have_is_refused(line: Line) -> None:
    for name in ("x" * 41, "1st", "a.b"):
        body = {
            "apiVersion": "thunderfleet.io/v1alpha1",
            "kind": "ModelDeployment",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"model": REPOSITORY},
        }
        done = line.cluster.kubectl("apply", "-f", "-", text=yaml.safe_dump(body), check=False)
        assert done.returncode != 0
        assert "metadata.name must have at most 40 characters of [a-z0-9-], start with a letter" in done.stderr


def test_a_model_that_no_mac_has_is_looked_for_until_it_comes(line: Line, deploy: Deploy) -> None:
    folder = line.cluster.models / "thunderfleet" / f"late-{uuid.uuid4().hex[:6]}"
    late = deploy("late", model={"path": str(folder)}, nodes={"min": 1, "max": 1})
    message = late.until_condition("ModelResolved", "False", "ModelNotFound")["message"]
    assert f"path {folder} was not found on any Mac" in message
    for mac in line.macs:
        assert re.search(rf"{mac} has \d+ models? in {line.cluster.models}", message)
    late.until_condition("Placed", "False", says="ModelResolved")
    late.until(lambda: f"{folder}" in late.kubectl("get", "events", "-o", "yaml"), "an Event says it too")

    tinymodel.make(folder, layers=2)
    resolved = late.until_condition("ModelResolved", "True")["message"]
    assert str(folder) in resolved
    late.until_ready()


def test_no_room_names_each_mac_and_mends_itself(line: Line, deploy: Deploy) -> None:
    large = deploy("large", memory={"contextTokens": 2**31 - 1, "concurrentRequests": 1024}, nodes={"min": 1})
    message = large.until_condition("Placed", "False", "NoRoom")["message"]
    for mac in line.macs:
        assert mac in message
    assert "free" in message and "GiB" in message
    assert large.state == "Pending"
    assert not [child for child in large.children() if child["kind"] == "Pod"]
    near = large.status["unplaceable"]
    assert near and all(entry["message"] for entry in near)
    assert f"{large.get()['metadata']['name']}" in large.kubectl("get", "md", large.name)

    large.patch({"memory": {"contextTokens": 4096, "concurrentRequests": 1}})
    large.until_ready()
    assert large.until_condition("Placed", "True")
    assert "unplaceable" not in large.status


def test_a_secret_without_an_api_key_opens_nothing(line: Line, deploy: Deploy) -> None:
    closed = deploy("closed", nodes={"min": 1, "max": 1}, server={"apiKeySecret": "keys"})
    closed.kubectl("create", "secret", "generic", "keys")
    said = closed.until_condition("Degraded", "True", "NoAPIKeys")
    assert "the Secret of spec.server.apiKeySecret has no value" in said["message"]


def test_more_macs_than_there_are(line: Line, deploy: Deploy) -> None:
    wide = deploy("wide", nodes={"min": len(line.macs) + 1})
    message = wide.until_condition("Placed", "False", "NotEnoughMacs")["message"]
    for mac in line.macs:
        assert mac in message
