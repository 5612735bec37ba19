"""`thunderfleet backup`: writes the data that a new control plane with the same identity needs into one file."""

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from thunderfleet_lib.kube import ApiError

from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.daemons.plan import from_state
from thunderfleet_controlplane.install.backup import archive, etcd
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.mac.files import only_one, read_json
from thunderfleet_controlplane.install.mac.preflight import INTERRUPTED, RESTORE_FIRST
from thunderfleet_controlplane.install.machine import Mac
from thunderfleet_controlplane.install.steps import cluster

NOTE_SECONDS = 10.0


@dataclass(frozen=True)
class BackupOptions:
    """The command line."""

    file: Path
    force: bool = False


def backup(mac: Mac, wanted: BackupOptions) -> None:
    """Write the file, which appears only when it is complete. Raises InstallError."""
    if os.geteuid() != 0:
        raise InstallError("this needs root: run it with sudo")
    layout = mac.layout
    if not layout.control_plane.exists() and not layout.former.exists():
        raise InstallError("this Mac has no control plane: run this on a Mac that has one")
    with only_one(layout.lock):
        if layout.joining.exists():
            raise InstallError(INTERRUPTED)
        if layout.former.exists():
            raise InstallError(RESTORE_FIRST)
        about = archive.About(mac.shipped.version, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        mac.step("backup", "requesting a snapshot from etcd")
        size = archive.write(wanted.file, about, contents(layout), force=wanted.force)
        archive.check(wanted.file)
    mac.step("backup", f"{wanted.file}: {size} bytes; only root can read it")
    _note(mac, about.created)
    mac.step("backup", "it contains all keys of the cluster: keep it secret, and keep a copy outside this Mac")


def _note(mac: Mac, when: str) -> None:
    """Record the backup in the cluster if the API server answers. A backup is possible without it."""
    name, config = str(read_json(mac.layout.kubelet_state).get("name")), from_state(read_json(mac.layout.state), mac.layout, ())

    async def note() -> None:
        async with asyncio.timeout(NOTE_SECONDS), cluster.connect(mac.layout, config.local_server) as kube:
            await cluster.put_backup_time(kube, name, when)

    try:
        asyncio.run(note())
    except (ApiError, OSError, TimeoutError) as error:
        mac.step("backup", f"cannot write the time of this backup to Node {name}, so an alert about backups may fire: {error}")


def contents(layout: HostLayout) -> Iterator[tuple[str, bytes]]:
    """The contents of a backup, in parts. Raises InstallError."""
    for name in archive.CONTROL_PLANE:
        yield name, _read(layout.control_plane / name)
    if layout.kubelet_config.exists():
        yield archive.KUBELET, _read(layout.kubelet_config)
    for part in etcd.snapshot(layout):
        yield archive.SNAPSHOT, part


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InstallError(
            f"cannot read {path}: {error.strerror}; if `thunderfleet init` was interrupted, run it again; otherwise restore "
            "the control plane from an earlier backup"
        ) from None
