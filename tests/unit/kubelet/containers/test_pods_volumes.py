"""Steps of the node conformance tests of Kubernetes for volumes, with real processes."""

import base64
import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from thunderfleet_crds.names import ANNOTATION_START_AT_BOOT
from thunderfleet_kubelet.pods import context
from thunderfleet_kubelet.pods.act import mounter
from thunderfleet_kubelet.pods.context import PodContext
from thunderfleet_lib.backoff import Backoff
from thunderfleet_lib.kube import ApiError

from tests.support.pods import World, sh, state

Json = dict[str, Any]
FIELDS = {"labels": "metadata.labels", "annotations": "metadata.annotations", "podname": "metadata.name"}
STAYS = "while :; do sleep 0.05; done"
OBJECTS = ("configMap", "secret")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounter, "REFRESH_SECONDS", 0.2)
    monkeypatch.setattr(context, "FRESH_SECONDS", 0.1)


def source_of(kind: str, name: str, **more: Any) -> Json:
    """A volume of a ConfigMap or Secret."""
    return {kind: {("secretName" if kind == "secret" else "name"): name, **more}}


def projected(source: Json, **more: Any) -> Json:
    """The same content in a projected volume."""
    ((kind, spec),) = source.items()
    spec = {"name" if key == "secretName" else key: value for key, value in spec.items() if key != "defaultMode"}
    modes = {key: value for key, value in source[kind].items() if key == "defaultMode"}
    return {"projected": {"sources": [{kind: spec}], **modes, **more}}


SHAPES: dict[str, Callable[[Json], Json]] = {"alone": lambda source: source, "projected": projected}


def add(world: World, kind: str, name: str, **data: str) -> None:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    world.api.add("secrets" if kind == "secret" else "configmaps", name, encoded if kind == "secret" else data)


def pod_with(source: Json, script: str = STAYS, **more: Any) -> Json:
    mount = [{"name": "v", "mountPath": "/v"}]
    return {"volumes": [{"name": "v", **source}], "containers": [sh(script, volumeMounts=mount, **more)]}


def seen(world: World, pod: str) -> dict[str, str]:
    """The files of the volume as the container sees them."""
    folder = world.folder(pod).sandbox("main", 0) / "v"
    return {path.name: path.read_text() for path in folder.iterdir() if not path.name.startswith("..")}


async def until_seen(world: World, pod: str, files: dict[str, str]) -> None:
    def there() -> bool:
        try:
            return seen(world, pod) == files
        except FileNotFoundError:
            # The kubelet has replaced the files after they were listed.
            return False

    await world.until(there)


async def until_waiting(world: World, pod: str) -> None:
    await world.until(lambda: state(world.api.pod(pod)["status"])["waiting"]["reason"] == "ContainerCreating")


def update(world: World, name: str, **metadata: Any) -> None:
    pod = world.api.pod(name)
    world.api.put(f"/api/v1/namespaces/default/pods/{name}", {**pod, "metadata": {**pod["metadata"], **metadata}})


@pytest.mark.parametrize("shape", SHAPES)
async def test_changed_labels_and_annotations_arrive_in_the_volume(world: World, shape: str) -> None:
    await world.boot()
    items = [{"path": name, "fieldRef": {"fieldPath": path}} for name, path in FIELDS.items()]
    world.api.add_pod("one", pod_with(SHAPES[shape]({"downwardAPI": {"items": items}})))
    update(world, "one", labels={"key1": "value1"}, annotations={"builder": "bar"})
    await world.phase("one", "Running")
    expected = {"labels": 'key1="value1"', "annotations": 'builder="bar"', "podname": "one"}
    await until_seen(world, "one", expected)
    update(world, "one", labels={"key1": "value1", "key3": "value3"}, annotations={"builder": "foo"})
    expected |= {"labels": 'key1="value1"\nkey3="value3"', "annotations": 'builder="foo"'}
    await until_seen(world, "one", expected)
    assert world.api.pod("one")["status"]["containerStatuses"][0]["restartCount"] == 0


@pytest.mark.parametrize("limited", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
async def test_limits_and_requests_of_the_container_or_what_the_node_has(world: World, shape: str, limited: bool) -> None:
    await world.boot()
    wanted = {"cpu_limit": ("limits.cpu", "1m"), "memory_limit": ("limits.memory", "1Mi")}
    if limited:
        wanted |= {"cpu_request": ("requests.cpu", "1m"), "memory_request": ("requests.memory", "1Mi")}
    items = [
        {"path": path, "resourceFieldRef": {"containerName": "main", "resource": resource, "divisor": divisor}}
        for path, (resource, divisor) in wanted.items()
    ]
    resources = {"limits": {"cpu": "1250m", "memory": "64Mi"}, "requests": {"cpu": "250m", "memory": "32Mi"}}
    more: Json = {"resources": resources} if limited else {}
    world.api.add_pod("one", pod_with(SHAPES[shape]({"downwardAPI": {"items": items}}), **more))
    await world.phase("one", "Running")
    own = {"cpu_limit": "1250", "memory_limit": "64", "cpu_request": "250", "memory_request": "32"}
    # That of the node, which has 4 CPUs and 8 GiB.
    node = {"cpu_limit": "4000", "memory_limit": "8192"}
    assert seen(world, "one") == (own if limited else node)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", OBJECTS)
async def test_optional_objects_come_change_and_go(world: World, kind: str, shape: str) -> None:
    await world.boot()
    source = SHAPES[shape](source_of(kind, "maybe", optional=True))
    world.api.add_pod("one", pod_with(source))
    await world.phase("one", "Running")
    assert seen(world, "one") == {}
    for data in ({"a": "1"}, {"a": "2", "b": "3"}, {"b": "3"}):
        add(world, kind, "maybe", **data)
        await until_seen(world, "one", data)
    plural = "secrets" if kind == "secret" else "configmaps"
    del world.api.objects[f"/api/v1/namespaces/default/{plural}/maybe"]
    await until_seen(world, "one", {})


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", OBJECTS)
async def test_a_pod_waits_for_an_object_and_for_a_key_that_it_needs(world: World, kind: str, shape: str) -> None:
    await world.boot()
    add(world, kind, "there", other="x")
    for name, source in (
        ("object", source_of(kind, "missing")),
        ("key", source_of(kind, "there", items=[{"key": "k", "path": "k"}])),
    ):
        world.api.add_pod(name, pod_with(SHAPES[shape](source)))
        await until_waiting(world, name)
    said = ("'missing' not found", "'there' has no key 'k'")
    await world.until(lambda: all(any(one in event["message"] for event in world.api.events) for one in said))
    assert {world.api.pod(name)["status"]["phase"] for name in ("object", "key")} == {"Pending"}
    assert world.processes() == []


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", OBJECTS)
async def test_modes_of_a_volume_and_of_its_items(world: World, kind: str, shape: str) -> None:
    await world.boot()
    add(world, kind, "data", one="1", two="2")
    items = [{"key": "one", "path": "one"}, {"key": "two", "path": "deep/two", "mode": 0o700}]
    source = SHAPES[shape](source_of(kind, "data", items=items, defaultMode=0o400))
    script = 'cd "$HOME/v" && stat -L -c %a one deep/two && cat one deep/two && echo && id -u && stat -L -c %u one'
    world.api.add_pod("one", pod_with(source, script))
    await world.phase("one", "Succeeded")
    *lines, user, owner = (await world.log("one")).splitlines()
    assert lines == ["400", "700", "12"] and user == owner


async def test_a_secret_of_another_namespace_is_another_one(world: World) -> None:
    await world.boot()
    add(world, "secret", "same", key="mine")
    other = {"metadata": {"name": "same", "namespace": "other"}, "data": {"key": base64.b64encode(b"theirs").decode()}}
    world.api.put("/api/v1/namespaces/other/secrets/same", other)
    for shape in SHAPES:
        world.api.add_pod(shape, pod_with(SHAPES[shape](source_of("secret", "same"))))
        await world.phase(shape, "Running")
        assert seen(world, shape) == {"key": "mine"}


@pytest.mark.parametrize("mode", ["644", "666", "777"])
async def test_files_in_an_empty_folder_have_the_modes_that_they_are_given(world: World, mode: str) -> None:
    await world.boot()
    script = f'cd "$HOME/v" && echo content > f && chmod {mode} f && cat f && stat -c %a f && id -u && stat -c %u f'
    world.api.add_pod("one", pod_with({"emptyDir": {}}, script))
    await world.phase("one", "Succeeded")
    *lines, user, owner = (await world.log("one")).splitlines()
    assert lines == ["content", mode] and user == owner


async def test_an_adopted_pod_gets_its_volumes_as_soon_as_the_api_server_answers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after the wait that the attempts before have reached: a Mac may boot long before the API server."""
    add(world, "configMap", "settings", a="1")
    await world.boot()
    world.api.add_pod("one", pod_with(source_of("configMap", "settings")))
    await world.phase("one", "Running")
    await world.managers[-1].stop(end_pods=False)
    monkeypatch.setattr(mounter, "REFRESH_SECONDS", 600.0)
    monkeypatch.setattr(mounter, "RETRY", Backoff(600.0, 600.0))
    add(world, "configMap", "settings", a="2")
    world.api.away, now = True, time.time()
    world.api.on_change = lambda: None
    manager = await world.boot(listed=False)
    (worker,) = manager._workers.values()
    await world.until(lambda: worker._mounter.due >= now + 600)
    assert seen(world, "one") == {"a": "1"}
    world.api.away = False
    manager.sync(world.api.pods())
    await until_seen(world, "one", {"a": "2"})


def kill_all(world: World) -> list[int]:
    """The processes of containers that were there to kill."""
    found = world.processes()
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found


async def lose_power(world: World, name: str, source: Json, **annotations: str) -> None:
    """Runs a pod that must run all the time, ends its processes with the kubelet's, and takes the API server away, too."""
    world.settings = replace(world.settings, boot="first")
    await world.boot()
    world.api.add_pod(name, {**pod_with(source), "restartPolicy": "Always"})
    update(world, name, annotations=annotations)
    await world.phase(name, "Running")
    saved = world.folder(name).load
    await world.until(lambda: ((saved() or {})["metadata"].get("annotations") or {}) == annotations)
    await world.managers[-1].stop(end_pods=False)
    world.api.on_change = lambda: None
    await world.until(lambda: not kill_all(world))
    world.settings = replace(world.settings, boot="second")
    world.api.away = True


async def test_a_volume_that_is_there_at_the_second_look_is_no_news(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a moment after a pod was bound, the API server forbids its kubelet to read what the pod uses."""
    forbidden, sources = {"soon": 1, "later": 2}, PodContext.sources

    async def read(context: PodContext, *wanted: Any) -> Any:
        name = context.pod["metadata"]["name"]
        if forbidden[name]:
            forbidden[name] -= 1
            raise ApiError(403, "Forbidden", "configmaps")
        return await sources(context, *wanted)

    monkeypatch.setattr(PodContext, "sources", read)
    await world.boot()
    add(world, "configMap", "settings", a="1")
    for name in tuple(forbidden):
        world.api.add_pod(name, pod_with(source_of("configMap", "settings")))
        await world.phase(name, "Running")
        await world.until(lambda name=name: world.api.reasons().count("Started") > (name == "later"))  # type: ignore[misc]
        assert ("FailedMount" in world.api.reasons()) == (name == "later")


async def test_a_pod_may_start_at_boot_with_its_volumes_as_they_were(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group serves again while the control plane starts, or without one that stays off."""
    monkeypatch.setattr(mounter, "REFRESH_SECONDS", 600.0)
    add(world, "configMap", "settings", a="1")
    await lose_power(world, "one", source_of("configMap", "settings"), **{ANNOTATION_START_AT_BOOT: "true"})
    add(world, "configMap", "settings", a="2")
    manager = await world.boot(listed=False)
    await world.until(lambda: world.folder("one").sandbox("main", 1).exists() and world.processes())
    folder = world.folder("one").sandbox("main", 1) / "v"
    assert (folder / "a").read_text() == "1"
    assert "FailedMount" not in world.api.reasons()
    world.api.away = False
    manager.sync(world.api.pods())
    await world.until(lambda: (folder / "a").read_text() == "2")
    assert not world.folder("one").attempt("main", 2).exists(), "it runs on"


@pytest.mark.parametrize(("annotation", "written"), [("false", True), ("true", False)])
async def test_other_pods_wait_for_the_api_server_at_boot(world: World, annotation: str, written: bool) -> None:
    add(world, "configMap", "settings", a="1")
    await lose_power(world, "one", source_of("configMap", "settings"), **{ANNOTATION_START_AT_BOOT: annotation})
    if not written:
        shutil.rmtree(world.folder("one").volume("v", world.user("one")))
    manager = await world.boot(listed=False)
    (worker,) = manager._workers.values()
    await world.until(lambda: worker._mounter._failures > 2 or world.folder("one").attempt("main", 1).exists())
    assert not world.folder("one").attempt("main", 1).exists()
    world.api.away = False
    manager.sync(world.api.pods())
    await world.until(world.processes)


async def test_a_pod_that_was_deleted_while_the_mac_was_off_ends_with_the_first_list(world: World) -> None:
    add(world, "configMap", "settings", a="1")
    await lose_power(world, "one", source_of("configMap", "settings"), **{ANNOTATION_START_AT_BOOT: "true"})
    manager = await world.boot(listed=False)
    await world.until(world.processes)
    world.api.away = False
    manager.sync({})
    await world.until(lambda: not world.processes() and not manager._workers)
