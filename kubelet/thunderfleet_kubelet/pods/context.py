"""Values that the parts of one pod's worker share."""

import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from thunderfleet_lib.kube import Json, Kube

from thunderfleet_kubelet.containers.folder import PodFolder
from thunderfleet_kubelet.containers.inputs import images, user
from thunderfleet_kubelet.containers.inputs.sources import Sources, data_of
from thunderfleet_kubelet.containers.runtime import ContainerRuntime
from thunderfleet_kubelet.containers.streams import exec_session
from thunderfleet_kubelet.images.puller import Asker, Images
from thunderfleet_kubelet.pods.decide.admission import Rejection
from thunderfleet_kubelet.pods.decide.podspec import all_containers, runs_one_at_a_time
from thunderfleet_kubelet.pods.events import Recorder
from thunderfleet_kubelet.pods.leavings import Leavings
from thunderfleet_kubelet.pods.objects import FRESH_SECONDS, Objects
from thunderfleet_kubelet.pods.settings import PodSettings
from thunderfleet_kubelet.pods.users import UserPool


@dataclass
class NodeServices:
    """Values that all workers of the node share.

    ``settings`` and ``kube`` return the current ones. ``users``: which pod has which user. ``leavings``: removes what
    they leave. ``admit`` decides whether the node takes a pod. ``ended`` is called with the uid of a pod that is gone.
    ``images``: pulls images; None: none are pulled.
    """

    node_name: str
    kube: Callable[[], Kube]
    settings: Callable[[], PodSettings]
    objects: Objects
    recorder: Recorder
    kubelet: user.KubeletUser
    users: UserPool
    leavings: Leavings
    admit: Callable[[Json], Awaitable[Rejection | None]]
    ended: Callable[[str], None]
    now: Callable[[], float] = time.time
    images: Images | None = None


class PodContext:
    """One pod.

    ``pod``: its newest version. ``status``: its status on this node, published or not. ``folder``: its files. ``containers``:
    its processes. ``wake``: makes the worker decide again.
    """

    def __init__(self, pod: Json, folder: PodFolder, services: NodeServices, wake: Callable[[], None]) -> None:
        self.pod = pod
        self.status: Json = dict(pod.get("status") or {})
        self.folder = folder
        self.containers = ContainerRuntime(folder)
        self.services = services
        self.wake = wake
        self._known_since = time.monotonic()

    @property
    def uid(self) -> str:
        """The pod's uid."""
        return str(self.pod["metadata"]["uid"])

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.pod['metadata']['namespace']}/{self.pod['metadata']['name']}"

    @property
    def path(self) -> str:
        """The pod's path in the API."""
        metadata = self.pod["metadata"]
        return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"

    @property
    def host(self) -> str:
        """The pod's IP, which is the node's."""
        return self.services.settings().addresses[0]

    def event(
        self, kind: Literal["Normal", "Warning"], reason: str, message: str, container: str | None = None, series: str = ""
    ) -> None:
        """Records an Event about the pod or one of its containers."""
        self.services.recorder.pod(self.pod, kind, reason, message, container, series)

    def container(self, name: str) -> Json:
        """The spec of a container. Raises StopIteration for an unknown one."""
        return next(item for item in all_containers(self.pod) if item["name"] == name)

    def image(self, container: Json) -> images.Image:
        """The container's image as it is on this machine. Raises ImageError."""
        name, pulled = str(container.get("image") or ""), self.services.images
        if pulled is not None and self._is_pulled(name):
            return pulled.present(name)
        return self._configured(container, name)

    def image_for(self, container: Json, asker: Asker) -> images.Image:
        """The container's image for a start; it is pulled if necessary. Raises ImageError."""
        name, pulled = str(container.get("image") or ""), self.services.images
        if pulled is not None and self._is_pulled(name):
            return pulled.get(name, _policy(container), asker)
        image = self._configured(container, name)
        asker.event("Normal", "Pulled", f"Container image {image.name!r} is folder {image.folder} on this machine")
        return image

    def _is_pulled(self, name: str) -> bool:
        """Whether the image comes from a registry: its name has one, and the configuration has no folder for it."""
        settings, pulled = self.services.settings(), self.services.images
        return pulled is not None and name not in settings.images and pulled.reference(name) is not None

    def _configured(self, container: Json, name: str) -> images.Image:
        settings = self.services.settings()
        missing = settings.own.missing(name) if settings.own else None
        return images.find(settings.images, name, _policy(container), missing)

    async def pull_secrets(self) -> list[dict[str, bytes]]:
        """The data of the Secrets in ``imagePullSecrets`` that exist. Raises ApiError."""
        names = {str(one.get("name")) for one in self.pod["spec"].get("imagePullSecrets") or [] if one.get("name")}
        if not names:
            return []
        found = (await self.sources((), names)).secrets
        return [data_of("Secret", item) for _, item in sorted(found.items()) if item is not None]

    def own_user(self, owner: user.ContainerUser) -> int | None:
        """The container's user if no other process runs as this user; None otherwise."""
        own = self.services.users.own(self.folder)
        return owner.uid if owner.uid == own and runs_one_at_a_time(self.pod) else None

    def user(self, container: Json, image: images.Image) -> user.ContainerUser:
        """The container's user. Raises ContainerConfigError."""
        own, pulled = self.services.users.of(self.folder), bool(image.identity)
        return user.decide(self.pod, container, image.user, own, self.services.kubelet, pulled=pulled)

    def runner(self, name: str, number: int) -> exec_session.RunCommand:
        """Runs commands in one attempt of a container."""

        async def run(command: list[str], seconds: float) -> tuple[int, str]:
            return await exec_session.run(self.folder, name, number, command, seconds)

        return run

    async def sources(self, config_maps: Iterable[str], secrets: Iterable[str]) -> Sources:
        """The node's facts, and the named objects from the API server. Raises ApiError."""
        settings, namespace = self.services.settings(), self.pod["metadata"]["namespace"]
        # An object read for an earlier pod may have been deleted and recreated since.
        age = min(FRESH_SECONDS, time.monotonic() - self._known_since)
        get = self.services.objects.get
        return Sources(
            node_name=self.services.node_name,
            host_ip=settings.addresses[0],
            host_ips=settings.addresses,
            api_server=settings.api_server,
            path=settings.path,
            python_path=settings.python_path,
            allocatable=settings.allocatable,
            config_maps={name: await get("ConfigMap", namespace, name, max_age=age) for name in sorted(config_maps)},
            secrets={name: await get("Secret", namespace, name, max_age=age) for name in sorted(secrets)},
        )


def _policy(container: Json) -> str:
    return str(container.get("imagePullPolicy") or "IfNotPresent")
