"""Sets up the volumes of one pod and keeps their content current."""

import asyncio
import contextlib
import logging
import random
from pathlib import Path

from thunderfleet_lib.backoff import Backoff
from thunderfleet_lib.kube import ApiError, Json

from thunderfleet_kubelet.containers.errors import ContainerConfigError, ImageError, VolumeError
from thunderfleet_kubelet.containers.inputs import volumes
from thunderfleet_kubelet.containers.inputs.user import ContainerUser
from thunderfleet_kubelet.containers.inputs.volume_content import (
    WRITTEN,
    File,
    check_size,
    kind_of,
    plan,
    references,
    size_of,
    volumes_of,
)
from thunderfleet_kubelet.pods.context import PodContext
from thunderfleet_kubelet.pods.decide.podspec import all_containers

log = logging.getLogger(__name__)

RETRY = Backoff(0.2, 10.0)
"""Short at first, and then without an Event: an API server forbids a kubelet to read the objects of a pod for a moment after
it has bound the pod, and for longer after it has started."""
LOCAL = ("emptyDir", "hostPath")
"""The kinds of volumes that need nothing from the API server."""
REFRESH_SECONDS = 60.0
"""How often ConfigMaps, Secrets, tokens and the downward API are compared with the mounted files."""


class Mounter:
    """``ready``: all volumes are set up. ``due``: when to mount again (seconds since the epoch); 0: not needed.

    ``reuse``: until ``retry_now``, volumes that an earlier kubelet has set up are used as they are.
    """

    def __init__(self, context: PodContext, *, reuse: bool = False) -> None:
        self._context = context
        self._reuse = reuse
        self.ready = False
        self.due = 0.0
        self._failures = 0

    def again(self) -> None:
        """Sets the volumes up again in the next step, because a container's user is known now."""
        self.due = 0.0

    def retry_now(self) -> None:
        """Sets the volumes up in the next step, unless this kubelet has already done so."""
        if self._reuse or not self.ready:
            self.due, self._failures, self._reuse = 0.0, 0, False

    async def mount(self) -> None:
        """Sets up the volumes, or updates them if that is due."""
        now = self._context.services.now()
        # A time further ahead than any that is set here means that the clock was set back.
        if now < self.due <= now + 2 * REFRESH_SECONDS:
            return
        try:
            if self._reuse and not self.ready and await self._take_over():
                self.ready, self.due = True, now + REFRESH_SECONDS
                return
            await self._write()
        except (VolumeError, ContainerConfigError, ApiError, OSError) as error:
            if self.ready:
                # The mounted files stay: a running pod must not depend on the API server.
                log.info("%s: volumes not updated: %s", self._context.key, error)
                self.due = now + REFRESH_SECONDS
                return
            self._failures += 1
            self.due = now + RETRY.seconds(self._failures)
            if self._failures > 1 or not isinstance(error, ApiError):
                self._context.event("Warning", "FailedMount", f"Unable to set up volumes: {error}")
        else:
            self.ready = True
            written = any(kind_of(volume) in WRITTEN for volume in volumes_of(self._context.pod))
            self.due = now + REFRESH_SECONDS * random.uniform(0.8, 1.2) if written else 0.0

    def places(self, owner: ContainerUser) -> dict[str, Path]:
        """The folder of each volume, by name, for a container of ``owner``."""
        folder = self._context.folder
        places = {}
        for volume in volumes_of(self._context.pod):
            name, kind = str(volume["name"]), kind_of(volume)
            if kind == "hostPath":
                places[name] = Path(str(volume["hostPath"]["path"]))
            elif kind == "emptyDir":
                places[name] = folder.empty(name)
            else:
                places[name] = folder.volume(name, owner.uid)
        return places

    def _users(self) -> dict[str, set[ContainerUser]]:
        """The users that mount each volume. Containers whose user cannot be determined do not start, so they do not count."""
        users: dict[str, set[ContainerUser]] = {}
        for container in all_containers(self._context.pod):
            with contextlib.suppress(ImageError, ContainerConfigError):
                owner = self._context.user(container, self._context.image(container))
                for mount in container.get("volumeMounts") or []:
                    users.setdefault(str(mount["name"]), set()).add(owner)
        return users

    async def _write(self) -> None:
        context, needed = self._context, references(self._context.pod)
        sources = await context.sources(needed.config_maps, needed.secrets)
        tokens = {
            token: (await context.services.objects.token(context.pod, token.audience, token.seconds)).text
            for token in sorted(needed.tokens, key=lambda item: (item.audience, item.seconds))
        }
        users, size = self._users(), 0
        for volume in volumes_of(context.pod):
            owners = users.get(str(volume["name"])) or set()
            if kind_of(volume) in LOCAL:
                await self._make(volume, owners)
                continue
            files = plan(volume, context.pod, sources, tokens)
            size += size_of(files) * len({owner.uid for owner in owners})
            check_size(size)
            # Up to thousands of files, which are compared again every minute.
            await asyncio.to_thread(self._write_files, volume, files, owners)

    async def _take_over(self) -> bool:
        """Sets up the volumes without the API server. False if it has to be asked: the content of one was never written."""
        users = self._users()
        for volume in volumes_of(self._context.pod):
            name, owners = str(volume["name"]), users.get(str(volume["name"])) or set()
            if kind_of(volume) in LOCAL:
                await self._make(volume, owners)
            elif not all(volumes.is_written(self._context.folder.volume(name, owner.uid)) for owner in owners):
                return False
        return True

    async def _make(self, volume: Json, owners: set[ContainerUser]) -> None:
        """Sets up a volume of a kind in ``LOCAL``. Raises VolumeError and OSError."""
        context, name = self._context, str(volume["name"])
        if kind_of(volume) == "emptyDir":
            volumes.make_empty(context.folder.empty(name), owners)
        elif name.startswith(volumes.OWNED):
            problem = await asyncio.to_thread(volumes.own_host_path, volume, owners)
            if problem is not None:
                # Some pods work without the folder, so the kubelet does not stop them.
                context.event("Warning", "FailedMount", problem)
        else:
            volumes.check_host_path(volume)

    def _write_files(self, volume: Json, files: dict[str, File], owners: set[ContainerUser]) -> None:
        for owner in {item.uid: item for item in owners}.values():
            folder = self._context.folder.volume(str(volume["name"]), owner.uid)
            folder.parent.mkdir(exist_ok=True)
            folder.parent.chmod(0o711)
            volumes.write_atomically(folder, files, owner)
