"""`thunderfleet backup`: writes everything that a new control plane with the same identity needs into one file."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.install.backup import archive, etcd
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.mac.files import only_one
from thunderfleet_controlplane.install.mac.preflight import INTERRUPTED, RESTORE_FIRST
from thunderfleet_controlplane.install.machine import Mac


@dataclass(frozen=True)
class Wanted:
    """The command line."""

    file: Path
    force: bool = False


def backup(mac: Mac, wanted: Wanted) -> None:
    """Write the file. Raises InstallError; the file is there when it is complete."""
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
        mac.step("backup", "asking etcd for a snapshot")
        size = archive.write(wanted.file, about, contents(layout), force=wanted.force)
        archive.check(wanted.file)
    mac.step("backup", f"{wanted.file}: {size} bytes; only root can read it")
    mac.step("backup", "it contains all keys of the cluster: keep it secret, and keep a copy outside of this Mac")


def contents(layout: HostLayout) -> Iterator[tuple[str, bytes]]:
    """What a backup has, in parts. Raises InstallError."""
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
