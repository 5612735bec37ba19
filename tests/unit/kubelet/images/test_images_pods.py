"""Pods whose images come from a registry: real shims, real processes and real HTTP, and an API server in memory."""

import asyncio
import copy
import json
import os
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from thunderfleet_kubelet.disk import DiskWatch
from thunderfleet_kubelet.images import collector, pull, puller
from thunderfleet_kubelet.images.puller import PULLS_OF_NAMESPACE, Images
from thunderfleet_kubelet.images.registry.reference import parse
from thunderfleet_kubelet.images.settings import PullSettings
from thunderfleet_kubelet.images.store import MAX_NAMES, PUBLIC
from thunderfleet_kubelet.node.machine import here
from thunderfleet_kubelet.pods import evictor
from thunderfleet_kubelet.pressure import DiskState, FileSystem, Met, parse_threshold
from thunderfleet_lib.backoff import Backoff

from tests.support.images.registry import Entry, Registry, folder, pull_secret, script
from tests.support.pods import KUBELET, USERS, World, state

Json = dict[str, Any]


class Clock:
    """Monotonic time that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Node:
    """A world with a registry, and images that pull from it."""

    def __init__(self, world: World, registry: Registry) -> None:
        self.world, self.registry, self.clock = world, registry, Clock()
        self.settings = PullSettings(plain_http=(registry.host,), platforms=(here(),), minimum_age=0.0)
        self.images: Images
        world.make_images = self.make

    def make(self) -> Images:
        self.images = Images(
            self.world.root / "images",
            self.settings,
            "test",
            node_event=lambda reason, message: self.world.node_events.append((reason, message)),
            clock=self.clock,
        )
        return self.images

    def name(self, rest: str) -> str:
        return f"{self.registry.host}/{rest}"

    def run(self, pod: str, image: str, policy: str = "IfNotPresent", **spec: Any) -> None:
        container = {"name": "main", "image": self.name(image), "imagePullPolicy": policy}
        self.world.api.add_pod(pod, {"containers": [container], **spec})

    def messages(self, reason: str) -> list[str]:
        return [event["message"] for event in self.world.api.events if event["reason"] == reason]

    async def waiting(self, pod: str, reason: str) -> str:
        """The message of the state with this reason."""
        await self.world.until(lambda: state(self.world.api.pod(pod)["status"])["waiting"]["reason"] == reason)
        return str(state(self.world.api.pod(pod)["status"])["waiting"].get("message", ""))

    async def asked_more_than(self, requests: int) -> None:
        """The registry was asked again, and all pulls have ended."""
        await self.world.until(lambda: len(self.registry.asked) > requests)
        await self.world.until(lambda: all(one.task.done() for one in self.images._work.values()))

    async def gone(self, pod: str) -> None:
        await self.world.until(lambda: f"default/{pod}" not in self.world.api.pods())

    async def ended(self, pod: str) -> Json:
        """The status of the pod's only container when it has ended well."""
        status = await self.world.phase(pod, "Succeeded")
        return dict(status["containerStatuses"][0])


@pytest_asyncio.fixture
async def node(world: World) -> AsyncIterator[Node]:
    registry = await Registry().start()
    yield Node(world, registry)
    if world.managers:
        await world.managers[-1].stop(end_pods=True)
    await registry.stop()


HELLO = (folder("opt"), script("opt/tool", 'echo "$GREETING from $0"'), script("entry", "tool"))
CONFIG: Json = {"Entrypoint": ["/entry"], "Env": ["GREETING=hello", "PATH=/opt:/usr/bin:/bin"]}


async def test_a_pod_runs_an_image_of_a_registry(node: Node) -> None:
    digest = node.registry.simple("team/hello", "1", *HELLO, config=CONFIG)
    await node.world.boot()
    node.run("one", "team/hello:1")
    status = await node.ended("one")
    rootfs = node.world.root / "images/trees" / digest.removeprefix("sha256:") / "rootfs"
    assert (await node.world.log("one")).strip() == f"hello from {rootfs}/opt/tool"
    assert (status["image"], status["imageID"]) == (node.name("team/hello:1"), node.name(f"team/hello@{digest}"))
    assert node.messages("Pulling") == [f"Pulling image '{node.name('team/hello:1')}'"]
    assert "Successfully pulled image" in node.messages("Pulled")[0]
    listed = node.images.listing()
    assert [one["names"] for one in listed] == [[node.name("team/hello:1"), node.name(f"team/hello@{digest}")]]
    assert listed[0]["sizeBytes"] > 0
    # By digest, and a second time: nothing is asked.
    asked = len(node.registry.asked)
    node.run("two", f"team/hello@{digest}")
    node.run("three", "team/hello:1")
    assert (await node.ended("two"))["imageID"] == (await node.ended("three"))["imageID"] == status["imageID"]
    assert len(node.registry.asked) == asked
    assert any("already present on machine" in message for message in node.messages("Pulled"))


async def test_a_program_that_is_started_by_name_finds_what_its_image_has_beside_it(node: Node) -> None:
    """As the chart starts agents: a name in ``command``, and another tag in the next pod."""
    program = script("bin/tool", 'cat "${0%/*}/../packages/version"; echo " $LIBRARIES $*"')
    await node.world.boot()
    for tag in ("first", "second"):
        node.registry.simple("fleet", tag, program, Entry("packages/version", tag.encode()), config={"Env": ["LIBRARIES=/l"]})
        container = {"name": "main", "image": node.name(f"fleet:{tag}"), "command": ["tool"], "args": ["--fast"]}
        node.world.api.add_pod(tag, {"containers": [container]})
        await node.ended(tag)
        assert await node.world.log(tag) == f"{tag} /l --fast\n"


async def test_always_follows_a_tag_that_moves_and_fetches_nothing_otherwise(node: Node) -> None:
    node.registry.simple("app", "1", script("x", "echo old"), config={"Cmd": ["/x"]})
    await node.world.boot()
    node.run("one", "app:1", "Always")
    old = await node.ended("one")
    sent = node.registry.sent
    node.run("two", "app:1", "Always")
    assert (await node.ended("two"))["imageID"] == old["imageID"]
    assert node.registry.sent == sent
    node.registry.simple("app", "1", script("x", "echo new"), config={"Cmd": ["/x"]})
    node.run("three", "app:1")
    assert (await node.ended("three"))["imageID"] == old["imageID"]
    node.run("four", "app:1", "Always")
    assert (await node.ended("four"))["imageID"] != old["imageID"]
    assert (await node.world.log("four")).strip() == "new"


@pytest.mark.parametrize("policy", ["Always", "Never"])
async def test_a_new_image_of_a_running_pod_replaces_its_container(node: Node, policy: str) -> None:
    """``kubectl set image``: whatever the policy says about containers that end by themselves."""
    stays = "trap 'exit 0' TERM; while :; do sleep 0.05; done"
    digests = [
        node.registry.simple("app", tag, script("x", f"echo {tag}; {stays}"), config={"Cmd": ["/x"]}) for tag in ("old", "new")
    ]
    await node.world.boot()
    node.run("one", "app:old", restartPolicy=policy)

    def status() -> Json:
        return dict(node.world.api.pod("one")["status"]["containerStatuses"][0])

    await node.world.until(lambda: "running" in status()["state"])
    assert (status()["image"], status()["imageID"]) == (node.name("app:old"), node.name(f"app@{digests[0]}"))
    pod = copy.deepcopy(node.world.api.pod("one"))
    pod["spec"]["containers"][0]["image"] = node.name("app:new")
    node.world.api.put("/api/v1/namespaces/default/pods/one", pod)
    await node.world.until(lambda: status()["restartCount"] == 1 and "running" in status()["state"], 60)
    assert (status()["image"], status()["imageID"]) == (node.name("app:new"), node.name(f"app@{digests[1]}"))
    assert status()["lastState"]["terminated"]["exitCode"] == 0
    log = node.world.folder("one").log("main", 1)
    await node.world.until(lambda: log.exists() and log.read_text().endswith("new\n"))
    assert node.messages("Killing") == ["Stopping container main: its image was changed, it will be restarted"]
    # The next kubelet leaves it as it is.
    await node.world.managers[-1].stop(end_pods=False)
    await node.world.boot()
    await node.world.until(lambda: node.world.managers[-1].queries.counts().containers == 1)
    assert status()["restartCount"] == 1 and len(node.messages("Killing")) == 1


async def test_never_and_names_without_a_registry_are_not_pulled(node: Node) -> None:
    node.registry.simple("app", "1", script("x", "echo x"), config={"Cmd": ["/x"]})
    await node.world.boot()
    node.run("never", "app:1", "Never")
    assert "not present with pull policy of Never" in await node.waiting("never", "ErrImageNeverPull")
    node.world.api.add_pod("local", {"containers": [{"name": "main", "image": "busybox:1"}]})
    assert "its name has no registry" in await node.waiting("local", "ImagePullBackOff")
    node.world.api.add_pod("wrong", {"containers": [{"name": "main", "image": node.name("UPPER:1")}]})
    assert "invalid image name" in await node.waiting("wrong", "InvalidImageName")
    assert node.registry.asked == []


async def test_the_error_then_the_back_off_then_the_image(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(puller, "ASK_SECONDS", 0.1)
    monkeypatch.setattr(puller, "ERROR_SECONDS", 0.1)
    await node.world.boot()
    node.run("one", "app:1")
    assert "manifest unknown" in await node.waiting("one", "ErrImagePull")
    node.clock.now += 1
    message = await node.waiting("one", "ImagePullBackOff")
    assert message.startswith(f"Back-off pulling image '{node.name('app:1')}': ErrImagePull: ")
    await node.world.until(lambda: node.messages("BackOff"))
    await node.world.until(lambda: "Error: ErrImagePull" in node.messages("Failed"))
    for wait in (10, 20, 40, 80, 160, 300, 300):
        tries = len(node.registry.asked)
        # Just before the end of the back-off it still waits; the test holds the clock.
        node.clock.now += wait - 2
        await asyncio.sleep(0)
        assert len(node.registry.asked) == tries
        node.clock.now += 2
        await node.asked_more_than(tries)
    node.registry.simple("app", "1", script("x", "echo x"), config={"Cmd": ["/x"]})
    node.clock.now += 300
    await node.ended("one")


@pytest.mark.parametrize("bearer", [False, True])
async def test_pull_secrets_open_an_image_for_the_pods_that_have_them(
    node: Node, bearer: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    node.registry.users, node.registry.bearer = {"alice": "wonder-land"}, bearer
    node.registry.simple("app", "1", script("x", "echo x"), config={"Cmd": ["/x"]})
    api = node.world.api
    api.add("secrets", "mine", pull_secret(node.registry.host, "alice", "wonder-land"))
    api.add("secrets", "wrong", pull_secret(node.registry.host, "alice", "looking-glass"))
    await node.world.boot()
    node.run("one", "app:1", imagePullSecrets=[{"name": "mine"}, {"name": "missing"}])
    await node.ended("one")
    # The image is there, and still others do not get it.
    node.run("two", "app:1")
    assert "imagePullSecrets" in await node.waiting("two", "ErrImagePull")
    node.run("three", "app:1", imagePullSecrets=[{"name": "wrong"}])
    assert "imagePullSecrets" in await node.waiting("three", "ErrImagePull")
    asked = len(node.registry.asked)
    node.run("four", "app:1", imagePullSecrets=[{"name": "mine"}])
    await node.ended("four")
    assert len(node.registry.asked) == asked
    everything = caplog.text + json.dumps(api.events) + json.dumps([api.pod(name) for name in ("one", "two", "three")])
    everything += "".join(file.read_text() for file in (node.world.root / "images/trees").glob("*/image.json"))
    for secret in ("wonder-land", "looking-glass", "token-of-alice"):
        assert secret not in everything


async def test_a_container_of_a_pulled_image_runs_as_the_pods_user_and_has_its_volumes(node: Node) -> None:
    node.registry.simple("app", "1", script("x", 'cat "$CONTAINER_SANDBOX_MOUNT_POINT/config/key"; id -u'), config={
        "Cmd": ["/x"], "User": "54321:54321"
    })  # fmt: skip
    node.world.api.add("configmaps", "settings", {"key": "value\n"})
    container = {
        "name": "main",
        "image": node.name("app:1"),
        "volumeMounts": [{"name": "config", "mountPath": "/config"}],
    }
    await node.world.boot()
    volumes = [{"name": "config", "configMap": {"name": "settings"}}]
    node.world.api.add_pod("one", {"containers": [container], "volumes": volumes})
    await node.ended("one")
    user = KUBELET.uid if USERS is None else USERS[0]
    assert (await node.world.log("one")).split() == ["value", str(user)]


async def test_long_pulls_of_one_namespace_do_not_keep_others_waiting(node: Node) -> None:
    node.registry.hold, node.registry.held = asyncio.Event(), "slow"
    for name in ("slow-1", "slow-2", "slow-3", "quick"):
        node.registry.simple(name, "1", script("x", f"echo {name}"), config={"Cmd": ["/x"]})
    await node.world.boot()
    for name in ("slow-1", "slow-2", "slow-3"):
        node.run(name, f"{name}:1")
        await node.world.until(lambda: len(node.images._work) == int(name[-1]))  # noqa: B023
    await node.world.until(lambda: len(node.registry.paths("blobs")) >= PULLS_OF_NAMESPACE)
    quick = {"containers": [{"name": "main", "image": node.name("quick:1")}]}
    pod = node.world.api.add_pod("quick", quick)
    del node.world.api.objects["/api/v1/namespaces/default/pods/quick"]
    pod["metadata"]["namespace"] = "other"
    path = "/api/v1/namespaces/other/pods/quick"
    node.world.api.put(path, pod)
    await node.world.until(lambda: node.world.api.objects[path]["status"]["phase"] == "Succeeded")
    node.registry.hold.set()
    for name in ("slow-1", "slow-2", "slow-3"):
        await node.ended(name)


async def test_a_pod_that_is_deleted_ends_its_pull(node: Node) -> None:
    node.registry.hold = asyncio.Event()
    node.registry.simple("app", "1", script("x", "echo x"), config={"Cmd": ["/x"]})
    await node.world.boot()
    node.run("one", "app:1")
    await node.world.until(lambda: node.registry.paths("blobs"))
    node.world.api.delete_pod("one")
    await node.world.until(lambda: "default/one" not in node.world.api.pods())
    await node.world.until(lambda: not node.images._work)
    node.registry.hold.set()
    node.registry.hold = None
    node.run("two", "app:1")
    await node.ended("two")


async def test_a_pod_whose_image_is_changed_while_it_is_pulled_runs_the_new_one(node: Node) -> None:
    node.registry.hold = asyncio.Event()
    for tag in ("old", "new"):
        node.registry.simple("app", tag, script("x", f"echo {tag}"), config={"Cmd": ["/x"]})
    await node.world.boot()
    node.run("one", "app:old")
    await node.world.until(lambda: node.registry.paths("blobs"))
    pod = copy.deepcopy(node.world.api.pod("one"))
    pod["spec"]["containers"][0]["image"] = node.name("app:new")
    node.world.api.put("/api/v1/namespaces/default/pods/one", pod)
    node.registry.hold.set()
    await node.ended("one")
    assert await node.world.log("one") == "new\n"


async def test_a_kubelet_that_ends_while_it_pulls_is_continued_by_the_next(node: Node) -> None:
    node.registry.simple("app", "1", script("x", "echo x"), Entry("data", os.urandom(500_000)), config={"Cmd": ["/x"]})
    node.registry.cut = 300_000
    node.registry.failing = lambda path: 503 if node.registry.sent > 300_000 else 0
    first = await node.world.boot()
    node.run("one", "app:1")
    await node.waiting("one", "ErrImagePull")
    await first.stop(end_pods=False)
    node.registry.failing, node.registry.cut = lambda path: 0, 0
    sent = node.registry.sent
    await node.world.boot()
    await node.ended("one")
    assert node.registry.sent - sent < 300_000


def full_until_deleted(node: Node, images: int) -> Callable[[object], FileSystem]:
    """A disk that is too full while there are more than ``images`` images."""

    def read(path: object) -> FileSystem:
        return FileSystem(0 if len(node.images.store.images) > images else 10**12, 10**12)

    return read


async def test_unused_images_are_deleted_when_the_disk_is_full_and_used_ones_never(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    stay = "trap 'exit 0' TERM; while :; do sleep 0.05; done"
    for name, text in (("used", stay), ("old", "echo old"), ("spec", "echo spec")):
        node.registry.simple(name, "1", script("x", text), config={"Cmd": ["/x"]})
    await node.world.boot()
    node.run("used", "used:1")
    await node.world.phase("used", "Running")
    node.run("old", "old:1")
    await node.ended("old")
    # The tag moves while its old image is in use: that one is found by the container's imageID.
    node.registry.simple("used", "1", script("x", "echo new"), config={"Cmd": ["/x"]})
    node.run("new", "used:1", "Always")
    await node.ended("new")
    for pod in ("old", "new"):
        node.world.api.delete_pod(pod)
        await node.gone(pod)
    assert len(node.images.store.images) == 3
    monkeypatch.setattr(collector, "file_system", full_until_deleted(node, 0))
    freed = await node.images.collector.look()
    assert freed > 0
    # The pod's spec names the new one too, so only the image without a pod is gone.
    left = {name for stored in node.images.store.images.values() for name in stored.tags}
    assert left == {node.name("used:1")}
    assert node.world.node_events[-1][0] == "FreeDiskSpaceFailed"
    assert list((node.world.root / "images/blobs").iterdir()) == []
    assert (await node.world.phase("used", "Running"))["containerStatuses"][0]["restartCount"] == 0
    node.run("again", "old:1")
    await node.ended("again")


async def test_an_image_with_many_names_is_bounded_and_not_deleted_under_a_pod(node: Node) -> None:
    stay = "trap 'exit 0' TERM; while :; do sleep 0.05; done"
    digest = node.registry.simple("used", "1", script("x", stay), config={"Cmd": ["/x"]})
    await node.world.boot()
    node.run("used", "used:1")
    await node.world.phase("used", "Running")
    # Its tag moves, and others give the image names of their own.
    node.registry.simple("used", "1", script("x", "echo new"), config={"Cmd": ["/x"]})
    node.run("new", "used:1", "Always")
    await node.ended("new")
    store = node.images.store
    used = store.images[digest.removeprefix("sha256:")]
    for number in range(MAX_NAMES + 1):
        reference = parse(node.name(f"other{number}:1"))
        assert reference is not None
        store.name(used, reference, digest, PUBLIC)
    assert node.name(f"used@{digest}") not in used.names
    assert [len(one) for one in (used.tags, used.digests, used.access)] == [MAX_NAMES] * 3
    await node.images.collector.free(2**50)
    assert used.key in store.images and node.world.processes()


async def test_a_failed_pull_is_reported_without_a_traceback_of_strangers(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(puller, "BACKOFF", Backoff(1000.0, 1000.0))
    node.registry.simple("app", "1", Entry("../evil", b"x"), config={"Cmd": ["/x"]})
    await node.world.boot()
    node.run("one", "app:1")
    assert "'../evil' leads out of the image" in await node.waiting("one", "ErrImagePull")
    assert list((node.world.root / "images/trees").iterdir()) == []
    assert list((node.world.root / "images/staging").iterdir()) == []


class FullWatch(DiskWatch):
    """A disk that is too full while there is an image that ``node`` could delete."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.world.root, (), (), 0.0)
        self._node = node

    def look(self) -> DiskState:
        if len(self._node.images.store.images) < 2:
            return DiskState((), False)
        return DiskState((Met(parse_threshold("nodefs.available", "10%"), 1000, 0),), True)


async def test_unused_images_go_before_a_pod_is_evicted(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evictor, "LOOK_SECONDS", 0.05)
    stay = "trap 'exit 0' TERM; while :; do sleep 0.05; done"
    for name, text in (("used", stay), ("old", "echo old")):
        node.registry.simple(name, "1", script("x", text), config={"Cmd": ["/x"]})
    await node.world.boot()
    node.run("used", "used:1")
    await node.world.phase("used", "Running")
    node.run("old", "old:1")
    await node.ended("old")
    node.world.api.delete_pod("old")
    await node.world.until(lambda: "default/old" not in node.world.api.pods())
    await node.world.managers[-1].stop(end_pods=False)
    node.world.disk = FullWatch(node)
    await node.world.boot()
    await node.world.until(lambda: len(node.images.store.images) == 1)
    assert (await node.world.phase("used", "Running"))["containerStatuses"][0]["restartCount"] == 0
    assert "Evicted" not in node.world.api.reasons()


async def test_a_kubelet_that_has_just_started_deletes_no_image_of_a_pod_that_it_has_not_looked_at(node: Node) -> None:
    """The tag has moved, so only the container itself says which image it runs."""
    stay = "trap 'exit 0' TERM; while :; do sleep 0.05; done"
    node.registry.simple("used", "1", script("x", stay), config={"Cmd": ["/x"]})
    first = await node.world.boot()
    node.run("used", "used:1")
    await node.world.phase("used", "Running")
    node.registry.simple("used", "1", script("x", "echo new"), config={"Cmd": ["/x"]})
    node.run("new", "used:1", "Always")
    await node.ended("new")
    await first.stop(end_pods=False)
    second = await node.world.boot()
    # No worker has had a turn.
    assert second._images_in_use() is None
    await node.images.collector.free(10**12)
    assert len(node.images.store.images) == 2
    await node.world.until(lambda: second._images_in_use() is not None)
    assert node.images._keys_in_use() == set(node.images.store.images)


async def test_events_say_how_far_a_long_pull_is(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull, "REPORT_SECONDS", 0.0)
    content = os.urandom(3 * 1024**2)
    node.registry.simple("big", "1", Entry("data", content), script("entry", "true"), config=CONFIG, compression="")
    await node.world.boot()
    node.run("one", "big:1")
    await node.ended("one")
    told = [one for one in node.messages("Pulling") if "MiB" in one]
    assert told and all(
        re.fullmatch(rf"Pulling image '{node.name('big:1')}': [0-3] of 3 MiB, \d+\.\d MiB/s", one) for one in told
    )


async def test_a_pull_that_takes_too_long_is_ended(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(puller, "PULL_SECONDS", 0.2)
    node.registry.hold = asyncio.Event()
    node.registry.simple("app", "1", script("x", "echo x"), config={"Cmd": ["/x"]})
    await node.world.boot()
    node.run("one", "app:1")
    try:
        assert "takes more than 0.2 s" in await node.waiting("one", "ErrImagePull")
    finally:
        node.registry.hold.set()


def nested(depth: int) -> Any:
    """Lists in lists, which text cannot be made of."""
    found: Any = []
    for _ in range(depth):
        found = [found]
    return found


ODD: list[tuple[Json, str]] = [
    ({"Env": [nested(900)]}, "an entry of Env must be text, not list"),
    ({"Env": ["A=\ud800"]}, "an entry of Env has a character"),
    ({"Env": ["\ud800=a"]}, "an entry of Env has a character"),
    ({"Env": ["A=\0"]}, "an entry of Env has a character"),
    ({"Env": {"A": "B"}}, "Env entry 'A' must be NAME=VALUE"),
    ({"Entrypoint": ["/en\0try"]}, "a word of Entrypoint has a character"),
    ({"Entrypoint": ["/entry\udfff"]}, "a word of Entrypoint has a character"),
    ({"Entrypoint": [nested(900)]}, "a word of Entrypoint must be text, not list"),
    ({"Entrypoint": 3}, "not iterable"),
    ({"Cmd": ["\0"]}, "a word of Cmd has a character"),
    ({"WorkingDir": "/a\0b"}, "WorkingDir has a character"),
    ({"WorkingDir": "/\ud800"}, "WorkingDir has a character"),
    ({"WorkingDir": nested(900)}, "WorkingDir must be text, not list"),
    ({"User": "a\0b"}, "User has a character"),
    ({"User": "\ud800"}, "User has a character"),
    ({"User": "9" * 5000}, "User has 5000 characters"),
    ({"User": nested(900)}, "User must be text, not list"),
]


async def test_a_configuration_that_no_process_can_have_is_an_error_of_its_container(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the pod would wait without a reason, and its kubelet log an error every few seconds."""
    for number, (config, _) in enumerate(ODD):
        node.registry.simple(f"odd-{number}", "1", *HELLO, config={**CONFIG, **config})
    await node.world.boot()
    for number, (_, words) in enumerate(ODD):
        node.run(f"odd-{number}", f"odd-{number}:1")
        assert words in await node.waiting(f"odd-{number}", "ImageInspectError")
        node.world.api.delete_pod(f"odd-{number}", grace=0)
    assert "step failed" not in caplog.text


@pytest.mark.parametrize("folder", ["/a\0b", "/\ud800"])
async def test_a_working_folder_that_no_process_can_have_is_an_error_of_its_container(
    node: Node, folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    node.registry.simple("app", "1", *HELLO, config=CONFIG)
    await node.world.boot()
    container = {"name": "main", "image": node.name("app:1"), "workingDir": folder}
    node.world.api.add_pod("one", {"containers": [container]})
    assert await node.waiting("one", "CreateContainerConfigError")
    assert "step failed" not in caplog.text
