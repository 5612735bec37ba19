"""The steps of docs/decisions/0031-api-versions.md on a real API server, with a CRD like that of ModelDeployments."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.errors import LocalClusterError

from tests.support import yamltext
from tests.support.waiting import NotInTimeError, until

Json = dict[str, Any]

GROUP = "versions.example.com"
NAME = f"modeldeployments.{GROUP}"
OLD, NEW = "v1alpha1", "v1beta1"
SOURCE = Path(__file__).parents[3] / "crds" / "thunderfleet.io_modeldeployments.yaml"
SECONDS = 30.0
COLLECTED_SECONDS = 120.0
"""The garbage collector looks for new kinds every 30 seconds."""
LOOKED_UP_SECONDS = 10.0
"""The garbage collector takes less than a second to find that an owner of a version that it knows does not exist."""


def crd(*, storage: str, versions: tuple[str, ...] = (OLD, NEW), unserved: tuple[str, ...] = ()) -> Json:
    """The CRD with these versions. They have the same fields, so nothing has to be converted but the version's name."""
    made: Json = yamltext.load(SOURCE.read_text())
    (only,) = made["spec"]["versions"]
    made["metadata"]["name"] = NAME
    made["spec"] |= {"group": GROUP, "conversion": {"strategy": "None"}}
    made["spec"]["names"] |= {"shortNames": [], "categories": []}
    made["spec"]["versions"] = [
        {**only, "name": name, "storage": name == storage, "served": name not in unserved}
        | ({"deprecated": True} if name == OLD and storage == NEW else {})
        for name in versions
    ]
    return made


class Versions:
    """The CRD and its objects."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        return self.cluster.kubectl(*arguments, text=text, seconds=SECONDS).stdout

    def apply(self, manifest: Json) -> None:
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", text=json.dumps(manifest))

    def get(self, name: str, version: str) -> Json:
        found: Json = json.loads(
            self.kubectl("get", "--raw", f"/apis/{GROUP}/{version}/namespaces/default/modeldeployments/{name}")
        )
        return found

    @property
    def stored(self) -> list[str]:
        found: list[str] = json.loads(self.kubectl("get", "crd", NAME, "-o", "jsonpath={.status.storedVersions}"))
        return found

    def serves(self, version: str) -> bool:
        try:
            self.kubectl("get", "--raw", f"/apis/{GROUP}/{version}/modeldeployments")
        except LocalClusterError:
            return False
        return True


@pytest.fixture
def versions(control_plane: Cluster) -> Iterator[Versions]:
    found = Versions(control_plane)
    yield found
    found.kubectl("delete", "crd", NAME, "--ignore-not-found", "--wait=false")


def model(name: str, version: str) -> Json:
    spec = {"model": {"repository": "a/b"}, "replicas": 2}
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": f"{GROUP}/{version}", "kind": "ModelDeployment", "metadata": metadata, "spec": spec}


def child(versions: Versions, name: str, owner: Json, version: str) -> None:
    """A ConfigMap with an owner reference that names this version."""
    reference = {"apiVersion": f"{GROUP}/{version}", "kind": owner["kind"], "controller": True, "blockOwnerDeletion": False}
    reference |= {key: owner["metadata"][key] for key in ("name", "uid")}
    metadata = {"name": name, "namespace": "default", "ownerReferences": [reference]}
    versions.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})


def without_version(item: Json) -> Json:
    fields = [{**entry, "apiVersion": ""} for entry in item["metadata"].pop("managedFields", [])]
    return {**item, "apiVersion": "", "managedFields": fields}


@pytest.mark.soak
def test_objects_move_from_one_version_to_the_next(versions: Versions) -> None:
    versions.apply(crd(storage=OLD, versions=(OLD,)))
    until(lambda: versions.serves(OLD), "the first version is served")
    versions.apply(model("first", OLD))
    status = json.dumps({"status": {"replicas": 2, "ready": "1/2"}})
    versions.kubectl("patch", f"modeldeployments.{GROUP}/first", "--subresource=status", "--type=merge", "-p", status)
    before = versions.get("first", OLD)

    # A release that serves both: clients of either see every object.
    versions.apply(crd(storage=OLD))
    until(lambda: versions.serves(NEW), "the next version is served")
    assert without_version(versions.get("first", NEW)) == without_version(before)
    versions.apply(model("second", NEW))
    assert versions.get("second", OLD)["spec"] == versions.get("second", NEW)["spec"]
    assert versions.stored == [OLD]

    # The next release stores the new one. The former cannot go while objects may be stored as it.
    versions.apply(crd(storage=NEW))
    until(lambda: versions.stored == [OLD, NEW], "both versions may be stored")
    with pytest.raises(LocalClusterError, match=r"status\.storedVersions\[0\]: Invalid value: \"v1alpha1\""):
        versions.apply(crd(storage=NEW, versions=(NEW,)))

    # The migration: every object is written once more, with nothing changed.
    for name in ("first", "second"):
        item = versions.get(name, NEW)
        versions.kubectl("replace", "-f", "-", text=json.dumps(item))
        after = versions.get(name, NEW)
        assert after["metadata"]["generation"] == item["metadata"]["generation"], "no controller has anything to do"
        assert after["metadata"]["resourceVersion"] != item["metadata"]["resourceVersion"], "it was stored again"
        assert (after["spec"], after.get("status")) == (item["spec"], item.get("status"))
        versions.kubectl("replace", "-f", "-", text=json.dumps(after))
        assert versions.get(name, NEW) == after, "the second time there is nothing to do"
    done = json.dumps({"status": {"storedVersions": [NEW]}})
    versions.kubectl("patch", "crd", NAME, "--subresource=status", "--type=merge", "-p", done)

    versions.apply(crd(storage=NEW, versions=(NEW,)))
    until(lambda: not versions.serves(OLD), "the former version is gone")
    assert versions.get("first", NEW)["status"] == before["status"]
    assert versions.stored == [NEW]


@pytest.mark.soak
def test_the_garbage_collector_follows_owner_references_of_versions_that_are_served(versions: Versions) -> None:
    def children() -> set[str]:
        names = versions.kubectl("get", "configmaps", "-n", "default", "-o", "name").split()
        return {name.removeprefix("configmap/") for name in names} & {"old", "new", "stale"}

    def delete(name: str) -> None:
        versions.kubectl("delete", f"modeldeployments.{GROUP}", name, "-n", "default")

    def forgotten(version: str) -> bool:
        """Whether the garbage collector no longer knows a version: it keeps a child whose owner of that version never was.

        True as well if it is slow. Then the test goes on too early, and may fail.
        """
        identity = str(uuid.uuid4())
        child(versions, identity, {"kind": "ModelDeployment", "metadata": {"name": "nobody", "uid": identity}}, version)
        there = ("get", "configmap", identity, "-n", "default", "--ignore-not-found", "-o", "name")
        try:
            until(lambda: not versions.kubectl(*there), "the child without an owner is gone", LOOKED_UP_SECONDS)
        except NotInTimeError:
            versions.kubectl("delete", "configmap", identity, "-n", "default")
            return True
        return False

    versions.apply(crd(storage=NEW))
    until(lambda: versions.serves(NEW) and versions.serves(OLD), "both versions are served")
    for name in ("first", "second"):
        versions.apply(model(name, NEW))
    first, second = (versions.get(name, NEW) for name in ("first", "second"))
    child(versions, "old", first, OLD)
    child(versions, "new", first, NEW)
    child(versions, "stale", second, OLD)
    delete("first")
    until(lambda: children() == {"stale"}, "the children of the one that is deleted are gone", COLLECTED_SECONDS)

    done = json.dumps({"status": {"storedVersions": [NEW]}})
    versions.kubectl("patch", "crd", NAME, "--subresource=status", "--type=merge", "-p", done)
    versions.apply(crd(storage=NEW, versions=(NEW,)))
    until(lambda: not versions.serves(OLD), "the former version is gone")
    until(lambda: forgotten(OLD), "the garbage collector does not know the former version", COLLECTED_SECONDS)
    child(versions, "new", second, NEW)
    delete("second")
    until(lambda: "new" not in children(), "the child that names the served version is gone", COLLECTED_SECONDS)
    assert children() == {"stale"}, "its owner is not found, so nothing says that it is deleted"
    child(versions, "stale", second, NEW)
    until(lambda: not children(), "with the served version its owner is missing", COLLECTED_SECONDS)
