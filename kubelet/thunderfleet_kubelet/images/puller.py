"""The images of one node: pulls what containers need, with the back-off and the events of Kubernetes."""

import asyncio
import logging
import time
from collections.abc import Callable, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol
from weakref import WeakValueDictionary

from thunderfleet_lib.backoff import Backoff

from thunderfleet_kubelet.containers.errors import ImageError
from thunderfleet_kubelet.containers.inputs import images
from thunderfleet_kubelet.containers.inputs.images import Image
from thunderfleet_kubelet.images.collector import Collector, NodeEvent
from thunderfleet_kubelet.images.errors import PullError
from thunderfleet_kubelet.images.pull import Pull, Pulled
from thunderfleet_kubelet.images.registry.clients import Clients
from thunderfleet_kubelet.images.registry.reference import Reference, parse
from thunderfleet_kubelet.images.registry.secrets import Credential, credentials
from thunderfleet_kubelet.images.settings import PullSettings
from thunderfleet_kubelet.images.store import PUBLIC, Store, Stored

log = logging.getLogger(__name__)

Json = dict[str, Any]

BACKOFF = Backoff(10.0, 300.0)
FORGET_SECONDS = 600.0
"""Seconds after which a failure no longer counts."""
ERROR_SECONDS = 1.0
"""How long a container shows ErrImagePull before ImagePullBackOff, whose message has the error too."""
ASK_SECONDS = 30.0
"""How often a container checks for an image that is being pulled or that waits; it is also called."""
PULLS_AT_ONCE = 3
PULLS_OF_NAMESPACE = 2
"""Fewer than ``PULLS_AT_ONCE``: pulls may take hours, and those of one namespace must not keep the others waiting."""
PULL_SECONDS = 4 * 3600.0
LISTED = 50
"""How many images a Node's status has, as with other kubelets."""

NEVER, ALWAYS = "Never", "Always"


class Asker(Protocol):
    """A container that needs an image."""

    @property
    def key(self) -> tuple[str, str, int]:
        """The pod's uid, the container's name, and the number of the start."""

    @property
    def namespace(self) -> str:
        """The pod's namespace."""

    def event(self, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """Records an Event."""

    async def secrets(self) -> list[dict[str, bytes]]:
        """The data of the pod's pull secrets. Raises ApiError."""

    def arrived(self) -> None:
        """Called when the pull has ended, with or without success."""


@dataclass
class _Failures:
    count: int = 0
    retry_at: float = 0.0
    shown_until: float = 0.0
    message: str = ""


@dataclass
class _Work:
    number: int
    name: str
    task: "asyncio.Task[None]"
    result: Pulled | None = None


class Images:
    """The images in ``root``.

    ``in_use``: the ``imageID`` of all containers that the node has, and the images of its pods' specs; None: all
    may be in use. ``node_event``: records a warning about the Node. ``changed``: called when there is another image.
    """

    def __init__(
        self,
        root: Path,
        settings: PullSettings,
        agent: str,
        node_event: NodeEvent = lambda reason, message: None,
        changed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.store = Store(root, now)
        self.in_use: Callable[[], tuple[Set[str], Set[str]] | None] = lambda: None
        self._settings, self._agent, self._changed, self._clock = settings, agent, changed, clock
        self._clients: Clients | None = None
        self._work: dict[tuple[str, str], _Work] = {}
        self._failures: dict[tuple[str, str], _Failures] = {}
        """By the pod's uid and the image's name."""
        self._pulling: dict[tuple[str, str], asyncio.Lock] = {}
        self._gate = asyncio.Semaphore(PULLS_AT_ONCE)
        self._gates: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """By namespace."""
        self.collector = Collector(self.store, settings, self._keys_in_use, node_event, now)

    async def run(self) -> None:
        """Deletes unused images until cancelled, then ends all pulls."""
        try:
            await self.collector.run()
        finally:
            await self.close()

    async def close(self) -> None:
        """Ends all pulls. What they have fetched stays, and is continued."""
        tasks = [work.task for work in self._work.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._clients is not None:
            await self._clients.close()
            self._clients = None

    def forget(self, uid: str) -> None:
        """Ends the pulls of a pod that is gone."""
        for key in [one for one in self._work if one[0] == uid]:
            self._work.pop(key).task.cancel()
        self._failures = {key: one for key, one in self._failures.items() if key[0] != uid}
        self.collector.nudge()

    def listing(self) -> list[Json]:
        """The images of the Node's status, the largest first."""
        largest = sorted(self.store.images.values(), key=lambda one: (-one.size, one.key))[:LISTED]
        return [{"names": sorted(one.names)[:5], "sizeBytes": one.size} for one in largest if one.names]

    # What containers ask

    def reference(self, name: str) -> Reference | None:
        """The image in a registry that ``name`` names; None if it names none. Raises ImageError."""
        try:
            return parse(name)
        except ValueError as error:
            raise ImageError("InvalidImageName", f"invalid image name: {error}") from None

    def present(self, name: str) -> Image:
        """The image as it is on the disk. Raises ImageError."""
        reference = self.reference(name)
        stored = self.store.find(reference) if reference is not None else None
        if reference is None or stored is None:
            raise ImageError("ErrImagePull", f"image {name!r} is not on this machine")
        return self._image(name, reference, stored)

    def get(self, name: str, policy: str, asker: Asker) -> Image:
        """The image for one start of a container.

        Raises ImageError with the reason of the container's status; while the image is being pulled, that is
        ContainerCreating. The asker is called when another call may have a different result.
        """
        reference = self.reference(name)
        if reference is None:
            raise ImageError("ErrImagePull", f"image {name!r} names no registry")
        uid, container, number = asker.key
        work = self._work.get((uid, container))
        if work is not None and (work.number, work.name) == (number, name):
            if not work.task.done():
                raise ImageError("ContainerCreating", "", ASK_SECONDS)
            self._work.pop((uid, container))
            if work.result is not None:
                return self._image(name, reference, work.result.stored)
        elif work is not None:
            # Of an earlier start, or the pod has another image now.
            self._work.pop((uid, container)).task.cancel()
        stored = self.store.find(reference)
        if stored is not None and policy != ALWAYS and stored.is_open(reference.name, PUBLIC):
            asker.event("Normal", "Pulled", f"Container image {name!r} already present on machine")
            return self._image(name, reference, stored)
        if policy == NEVER and stored is None:
            raise ImageError("ErrImageNeverPull", f"Container image {name!r} is not present with pull policy of Never")
        self._check_failures(uid, name, asker)
        task = asyncio.create_task(self._run(name, reference, policy, asker))
        self._work[(uid, container)] = _Work(number, name, task)
        raise ImageError("ContainerCreating", "", ASK_SECONDS)

    def _check_failures(self, uid: str, name: str, asker: Asker) -> None:
        failures, now = self._failures.get((uid, name)), self._clock()
        if failures is None or now >= failures.retry_at:
            return
        if now < failures.shown_until:
            raise ImageError("ErrImagePull", failures.message, failures.shown_until - now)
        asker.event("Normal", "BackOff", f"Back-off pulling image {name!r}")
        message = f"Back-off pulling image {name!r}: ErrImagePull: {failures.message}"
        raise ImageError("ImagePullBackOff", message, min(ASK_SECONDS, failures.retry_at - now))

    def _image(self, name: str, reference: Reference, stored: Stored) -> Image:
        self.store.touch(stored)
        folder = self.store.rootfs(stored)
        identity = next((one for one in reversed(stored.digests) if one.startswith(f"{reference.name}@")), stored.key)
        if reference.digest:
            identity = str(reference)
        elif str(reference) in stored.tags:
            identity = f"{reference.name}@{stored.tags[str(reference)]}"
        try:
            return images.pulled(name, folder, self.store.config(stored), identity)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ImageError("ImageInspectError", f"image {name!r}: invalid configuration: {error}") from None

    # Pulls

    async def _run(self, name: str, reference: Reference, policy: str, asker: Asker) -> None:
        uid, container, _ = asker.key
        try:
            result = await self._pull(name, reference, policy, asker)
        except Exception as error:
            if not isinstance(error, PullError):
                log.debug("image %s", name, exc_info=error)
            self._failed(uid, name, _words(error), asker)
        else:
            self._failures.pop((uid, name), None)
            work = self._work.get((uid, container))
            if work is not None and work.task is asyncio.current_task():
                work.result = result
            self._changed()
        finally:
            # In the next turn, when the task is done.
            asyncio.get_running_loop().call_soon(asker.arrived)

    async def _pull(self, name: str, reference: Reference, policy: str, asker: Asker) -> Pulled:
        known = credentials(await asker.secrets(), reference)
        waiting = self._clock()
        # Pods of another namespace do not wait for a lock whose holder waits for the pulls of its own.
        place = (asker.namespace, str(reference))
        lock = self._pulling.setdefault(place, asyncio.Lock())
        gate = self._gates.setdefault(asker.namespace, asyncio.Semaphore(PULLS_OF_NAMESPACE))
        try:
            async with lock, gate, self._gate:
                stored = self.store.find(reference)
                if stored is not None and policy != ALWAYS and _may_have(stored, reference, known):
                    asker.event("Normal", "Pulled", f"Container image {name!r} already present on machine")
                    return Pulled(stored, 0)
                if policy == NEVER:
                    raise PullError("the pull policy is Never, and the pod has no credentials with which the image was pulled")
                return await self._fetch(name, reference, known, asker, waiting)
        finally:
            if not lock.locked():
                self._pulling.pop(place, None)

    async def _fetch(self, name: str, reference: Reference, known: list[Credential], asker: Asker, waiting: float) -> Pulled:
        if self._clients is None:
            self._clients = Clients(self._settings.ca_file, self._agent)
        asker.event("Normal", "Pulling", f"Pulling image {name!r}")
        began = self._clock()

        def report(words: str) -> None:
            asker.event("Normal", "Pulling", f"Pulling image {name!r}: {words}")

        pull = Pull(self._clients, self.store, self._settings, reference, self.collector.free, report)
        try:
            async with asyncio.timeout(PULL_SECONDS):
                pulled = await pull.run(known)
        except TimeoutError:
            raise PullError(f"the pull takes more than {PULL_SECONDS:g} s; the next one continues it") from None
        took, whole = self._clock() - began, self._clock() - waiting
        asker.event(
            "Normal",
            "Pulled",
            f"Successfully pulled image {name!r} in {took:.3g}s ({whole:.3g}s including waiting). "
            f"Image size: {pulled.stored.size} bytes, {pulled.fetched} bytes fetched.",
        )
        return pulled

    def _failed(self, uid: str, name: str, message: str, asker: Asker) -> None:
        now = self._clock()
        failures = self._failures.setdefault((uid, name), _Failures())
        if now - failures.retry_at > FORGET_SECONDS:
            failures.count = 0
        failures.count += 1
        failures.message, failures.shown_until = f"failed to pull image {name!r}: {message}", now + ERROR_SECONDS
        failures.retry_at = now + BACKOFF.seconds(failures.count)
        asker.event("Warning", "Failed", f"Failed to pull image {name!r}: {message}")

    def _keys_in_use(self) -> set[str]:
        """The keys of the images of all containers and pods of the node."""
        used = self.in_use()
        if used is None:
            return set(self.store.images)
        identities, texts = used
        names = {str(reference) for text in texts if (reference := _parsed(text)) is not None}
        # By digest, because a record keeps only the last names of an image that has many.
        digests = {one.rpartition("@")[2] for one in identities}
        found = set()
        for stored in self.store.images.values():
            if not digests.isdisjoint(stored.contents) or not names.isdisjoint(stored.names):
                found.add(stored.key)
        return found


def _may_have(stored: Stored, reference: Reference, known: list[Credential]) -> bool:
    return any(stored.is_open(reference.name, mark) for mark in (PUBLIC, *(one.mark for one in known)))


def _parsed(text: str) -> Reference | None:
    try:
        return parse(text)
    except ValueError:
        return None


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
