"""`thunderfleet restore`: replaces the control plane of this Mac by the one in a backup, or keeps the present one.

The new control plane is prepared while the present one runs. Then the daemons end, two folders are renamed, and the steps of
`init` start the new one. Until it is Ready, the former control plane is kept. If a run is interrupted, the next run restores
the former control plane and starts again.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from thunderfleet_controlplane.balancer import disk
from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.daemons.plan import EXIT_SECONDS, NODE, ORDER, HostConfig, from_state, label
from thunderfleet_controlplane.install.backup import archive, etcd
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.init import InitOptions, install
from thunderfleet_controlplane.install.mac.facts import changeable, default_address, folders, other_names
from thunderfleet_controlplane.install.mac.files import make_folder, only_one, read_json, remove, with_leftovers
from thunderfleet_controlplane.install.mac.preflight import INTERRUPTED, init_problems
from thunderfleet_controlplane.install.machine import Mac, refuse
from thunderfleet_controlplane.install.peers.members import Etcd, EtcdError
from thunderfleet_controlplane.install.peers.quorum import hosts_in
from thunderfleet_controlplane.install.steps.certificates import own_ca_hash, put_certificates
from thunderfleet_controlplane.install.steps.programs import put_control_plane

SPARE_BYTES = 1 << 30
REJOIN = (
    "find it by the name of this Mac; where they do not, run `sudo thunderfleet join -` with the join line that `sudo "
    "thunderfleet init` prints here"
)


@dataclass(frozen=True)
class RestoreOptions:
    """The command line. No ``file``: put back the control plane that an interrupted restore kept."""

    file: Path | None
    address: str | None = None


@dataclass(frozen=True)
class Steps:
    """The operations of a restore on the programs of this Mac."""

    stage: Callable[[Mac, Path, HostConfig], None]
    """Prepares the control plane of a file in ``layout.staged``."""
    start: Callable[[Mac, HostConfig], None]
    """Installs and starts the control plane in place, and waits until it is Ready."""


def restore(mac: Mac, wanted: RestoreOptions, steps: Steps | None = None) -> None:
    """Restore. Raises InstallError; running it again completes it."""
    steps = steps or Steps(stage, start)
    mac.step("preflight", "checking this Mac")
    if os.geteuid() != 0:
        raise InstallError("this needs root: run it with sudo")
    refuse(list(changeable(folders(mac.layout))))
    if wanted.file is None:
        with only_one(mac.layout.lock):
            _undo(mac)
        return
    about = archive.check(wanted.file)
    if archive.newer(about.version, mac.shipped.version):
        raise InstallError(
            f"{wanted.file} is from version {about.version}, which is newer than this version ({mac.shipped.version}): "
            f"install {about.version} first"
        )
    mac.step("preflight", f"{wanted.file} is complete: version {about.version}, of {about.created}")
    with only_one(mac.layout.lock):
        _restore(mac, wanted.file, wanted.address, steps)


def _restore(mac: Mac, file: Path, address: str | None, steps: Steps) -> None:
    layout = mac.layout
    if layout.joining.exists():
        raise InstallError(INTERRUPTED)
    put_back(mac)
    for left in with_leftovers(layout.staged.data):
        remove(left)
    unpack(mac, file)
    config = _configuration(mac, address)
    same_address = config.address == read_json(layout.staged.state).get("address")
    steps.stage(mac, file, config)
    refuse(_others(mac))
    replaced = _replace(mac)
    try:
        steps.start(mac, config)
    except (Exception, KeyboardInterrupt) as error:
        raise _failed(mac, steps, error, replaced) from error
    # An atomic step before the files are removed: from here on, the new control plane is the valid one.
    remove(layout.former)
    remove(layout.staged.data)
    others = "need nothing" if same_address else REJOIN
    mac.step("restore", f"the control plane of the backup runs; Macs that had joined it {others}")


def _others(mac: Mac) -> list[str]:
    """Why other control planes prevent a restore: they would continue with the replaced data.

    The search uses the keys of the backup, because the keys on this Mac may be destroyed.
    """
    layout, staged = mac.layout, mac.layout.staged
    states = [from_state(read_json(path), layout, ()) for path in (layout.state, staged.state)]
    hosts = [host for state in states for host in hosts_in(state.etcd_initial)]
    try:
        members = Etcd(staged.pki, (*hosts, *(one.host for one in disk.read(layout.api_servers)))).members()
    except EtcdError:
        if any(state.shared for state in states):
            mac.step(
                "preflight",
                "WARNING: other control planes of this cluster that do not answer now would continue with the old data: "
                "disconnect them from the network, and run `sudo thunderfleet reset --force` on each before it is connected "
                "again",
            )
        return []
    if len(members) < 2:
        return []
    every = ", ".join(map(str, members))
    return [
        f"this cluster has several control planes, and the others would continue without this one: {every}. Run `sudo "
        "thunderfleet reset` on each of these Macs except this one first; after the restore, join them again"
    ]


def unpack(mac: Mac, file: Path) -> None:
    """Write the contents of a backup into ``layout.staged``. Raises InstallError."""
    staged = mac.layout.staged
    make_folder(staged.data, 0o700)
    make_folder(staged.control_plane, 0o700)
    make_folder(staged.pki.folder, 0o700)
    for name, data in archive.contents(file):
        path = _place(staged, name)
        if name == archive.SNAPSHOT and shutil.disk_usage(staged.data).free < SPARE_BYTES:
            raise InstallError(f"less than {SPARE_BYTES >> 30} GiB are free on the disk of {staged.data}: free some space")
        with open(path, "ab", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o600)) as target:
            target.write(data)
            if name != archive.SNAPSHOT:
                target.flush()
                os.fsync(target.fileno())


def _place(staged: HostLayout, name: str) -> Path:
    """The path to which a content is unpacked. All names are known."""
    return staged.data / name if name in (archive.SNAPSHOT, archive.KUBELET) else staged.control_plane / name


def _configuration(mac: Mac, address: str | None) -> HostConfig:
    """The Node name of the backup, and its address if this Mac has it. Raises InstallError."""
    known = read_json(mac.layout.staged.state)
    name, before = str(known.get("name")), str(known.get("address"))
    facts = mac.facts(ORDER)
    if address is None:
        address = before if before in facts.addresses else default_address(mac.host)
    if address is not None and address != before:
        mac.step(
            "preflight",
            f"the address of the API server changes from {before} to {address}: Macs that do not find it by its name must run "
            "`join` with a new join line",
        )
    # The present control plane is replaced, unless this Mac is a Node of another one.
    if facts.initialised or facts.joined.get("caHash") in (None, own_ca_hash(mac.layout.staged)):
        facts = replace(facts, initialised={"name": name})
    refuse(init_problems(facts, name, address))
    return HostConfig(name, str(address), mac.layout, other_names())


def stage(mac: Mac, file: Path, config: HostConfig) -> None:
    """Make certificates and etcd's data in ``layout.staged``. Raises InstallError."""
    layout, staged = mac.layout, mac.layout.staged
    mac.step("restore", f"preparing the control plane of Node {config.name} in {staged.data}")
    put_control_plane(layout, ("etcdutl",), mac.shipped.find_etcdutl())
    # Fails if authorities and keys do not belong together.
    put_certificates(replace(config, layout=replace(staged, logs=layout.logs)))
    snapshot = staged.data / archive.SNAPSHOT
    etcd.make_data(mac.host, layout.control_plane_programs / "etcdutl", snapshot, staged.etcd)
    remove(snapshot)


def start(mac: Mac, config: HostConfig) -> None:
    """Start the installed control plane, as `init` does. Raises InstallError."""
    kubelet = mac.layout.staged.data / archive.KUBELET
    given = kubelet if kubelet.exists() and not mac.layout.kubelet_config.exists() else None
    install(mac, InitOptions(kubelet_config=given, chart=False), config)


def _replace(mac: Mac) -> bool:
    """End the control plane and replace it by the prepared one. Returns whether there was a control plane."""
    layout = mac.layout
    _end_daemons(mac)
    there = layout.control_plane.exists()
    mac.step("restore", "replacing the control plane")
    if there:
        layout.control_plane.rename(layout.former)
    layout.staged.control_plane.rename(layout.control_plane)
    archive.sync_folder(layout.data)
    return there


def _end_daemons(mac: Mac) -> None:
    """End the daemons of the control plane. The kubelet with its pods and the balancer keep running."""
    for name in reversed(ORDER):
        if name not in NODE and mac.launchctl.unload(label(name), EXIT_SECONDS.get(name, 20)):
            mac.step("restore", f"ended {label(name)}")


def put_back(mac: Mac) -> bool:
    """Put back the control plane that an incomplete restore replaced. Returns whether there was one."""
    layout = mac.layout
    if not layout.former.exists():
        return False
    mac.step("restore", "putting back the control plane that an interrupted restore replaced")
    _end_daemons(mac)
    for left in with_leftovers(layout.control_plane):
        remove(left)
    layout.former.rename(layout.control_plane)
    archive.sync_folder(layout.data)
    return True


def _undo(mac: Mac) -> None:
    if not put_back(mac):
        raise InstallError("there is nothing to undo: no restore was interrupted", usage=True)
    remove(mac.layout.staged.data)
    mac.step("restore", "run `sudo thunderfleet init` to start it")


def _failed(mac: Mac, steps: Steps, error: BaseException, replaced: bool) -> InstallError:
    """The error of a failed restore, after the former control plane was put back."""
    why = f"the control plane of the backup is not Ready: {error}" if str(error) else "the restore was interrupted"
    if not replaced:
        return InstallError(
            f"{why}\nThis Mac had no control plane before, so the restored one stays; run this again, or "
            "`sudo thunderfleet reset`"
        )
    put_back(mac)
    config = from_state(read_json(mac.layout.state), mac.layout, other_names())
    try:
        steps.start(mac, config)
    except (Exception, KeyboardInterrupt) as second:
        return InstallError(f"{why}\nThe previous one was restored, and does not start: {second}\nRun `sudo thunderfleet init`")
    return InstallError(f"{why}\nThe previous one was restored, and runs")
