"""`thunderfleet reset`: removes what `init` and `join` installed on this Mac, and lists what remains.

Pods are removed first, because containers outlive the kubelet; then the kubelet, and etcd last. Running this again after an
interruption completes it.
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from thunderfleet_lib.host import yamltext
from thunderfleet_lib.host.hostcmd import BlockingHost
from thunderfleet_lib.kube import ApiError
from thunderfleet_lib.macnet.keeper import undo
from thunderfleet_lib.modelstore.layout import OWN, REPOSITORY

from thunderfleet_controlplane.components import server_url
from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.daemons.plan import API_PORT, EXIT_SECONDS, KUBELET, LOCAL, ORDER, label
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.mac import gpu_memory
from thunderfleet_controlplane.install.mac.daemons import remove_daemon
from thunderfleet_controlplane.install.mac.facts import changeable, folders
from thunderfleet_controlplane.install.mac.files import only_one, read_json, remove, remove_empty, with_leftovers
from thunderfleet_controlplane.install.machine import Mac, refuse
from thunderfleet_controlplane.install.peers.leave import forget_own, leave, leaving, remove_member
from thunderfleet_controlplane.install.steps import chart, cluster, kubelet

PODS_SECONDS = 60.0
POLL_SECONDS = 0.3
PS_SECONDS = 10.0


@dataclass(frozen=True)
class ResetOptions:
    """The command line. ``member``: remove the control plane of another Mac, and nothing here."""

    force: bool = False
    member: str | None = None


def reset(mac: Mac, wanted: ResetOptions | None = None) -> None:
    """Remove everything that can be removed. Raises InstallError if a part that must be removed remains."""
    wanted = wanted or ResetOptions()
    if os.geteuid() != 0:
        raise InstallError("this needs root: run it with sudo")
    # A user who can replace a parent folder could make root remove another folder.
    refuse(list(changeable(folders(mac.layout))))
    if wanted.member is not None and not mac.layout.state.exists():
        raise InstallError("this Mac has no control plane: run this on one that has", usage=True)
    with only_one(mac.layout.lock):
        if wanted.member is not None:
            left = remove_member(mac, wanted.member, force=wanted.force)
            chart.follow_control_planes(mac, _chart(mac), left + 1, left)
        else:
            _remove(mac, force=wanted.force)


def _remove(mac: Mac, *, force: bool) -> None:
    layout = mac.layout
    node, control_plane = _node(layout), layout.control_plane.exists()
    # Checked before any change, because the others may need this Mac.
    going = None if force else leaving(mac)
    if mac.launchctl.describe(label(KUBELET)) is not None and control_plane and node is not None:
        _end_pods(mac, node)
    # A running kubelet would create its Node again, and an API server without etcd takes long to end.
    _end_daemons(mac, (KUBELET,))
    if going is not None:
        # Must be done while the API server of this Mac still works.
        chart.follow_control_planes(mac, _chart(mac), going.left + 1, going.left)
        forget_own(mac)
        _end_daemons(mac, [name for name in ORDER if name != "etcd"])
        leave(mac, going)
    _end_daemons(mac, ORDER)
    _undo_ports(mac)
    _forget_gpu_memory(mac)
    for path in _owned(layout):
        if remove(path):
            mac.step("reset", f"removed {path}")
    _empty_store(mac)
    for folder in (layout.logs, layout.data, layout.programs_root):
        if left := remove_empty(folder):
            mac.step("reset", f"not removed: {folder}, which contains {', '.join(left[:8])}")
    if node is not None and not control_plane:
        mac.step("reset", f"not removed: the Node of this Mac in its cluster; remove it with `kubectl delete node {node}`")
    mac.step("reset", "not removed: models, the cache of built programs, kubeconfigs in home folders, this program")


def _node(layout: HostLayout) -> str | None:
    """The name of this Mac's Node; None if it is unknown. An interrupted reset has left it in the kubelet's configuration."""
    name = read_json(layout.kubelet_state).get("name")
    if name is None:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            name = yamltext.load(layout.kubelet_config.read_text(encoding="utf-8")).get("nodeName")
    return None if name is None else str(name)


def _chart(mac: Mac) -> Path:
    return mac.shipped.chart(Path(sys.prefix))


def _end_daemons(mac: Mac, names: Sequence[str]) -> None:
    layout = mac.layout
    for name in reversed(names):
        seconds = kubelet.EXIT_SECONDS if name == KUBELET else EXIT_SECONDS.get(name, 20)
        if remove_daemon(mac.launchctl, layout.plist(label(name)), label(name), seconds):
            mac.step("reset", f"ended {label(name)}")
        if name == KUBELET:
            _end_containers(mac.host, layout.kubelet)


def _forget_gpu_memory(mac: Mac) -> None:
    """Use the default of macOS again, if `doctor` has set another limit."""
    try:
        if gpu_memory.forget(mac.host, mac.layout):
            mac.step("reset", "removed the limit of GPU memory that `doctor` has set")
    except InstallError as error:
        mac.step("reset", f"not removed: the limit of GPU memory, which lasts until the next reboot ({error})")


def _empty_store(mac: Mac) -> None:
    """Remove the folder for models from the hub, unless there are models in it."""
    store = mac.layout.models
    if not store.is_dir():
        return
    if left := sorted(name for name in os.listdir(store) if name.startswith(REPOSITORY)):
        mac.step("reset", f"not removed: {store}, which contains {', '.join(left[:8])}")
        return
    remove(store / OWN)
    remove_empty(store)
    remove_empty(store.parent)


def _undo_ports(mac: Mac) -> None:
    """Put the Thunderbolt ports back as they were before the kubelet changed them."""
    record = mac.layout.thunderbolt_ports
    if not record.exists():
        return
    if left := undo(mac.host.run, record):
        # The record is removed with the kubelet's folder, so this is the last message about it.
        said = "; ".join(left)
        where = "remove them in System Settings > Network"
        mac.step("reset", f"not removed: network services whose names begin with Thunderfleet; {where} ({said})")
    else:
        mac.step("reset", "put the Thunderbolt ports back as they were")


def _owned(layout: HostLayout) -> list[Path]:
    """All files that an installation of any version writes, except property lists."""
    programs = sorted(layout.programs_root.iterdir()) if layout.programs_root.is_dir() else []
    version = re.compile(r"(control-plane-)?\d+\.\d+\S*")
    # The record that this Mac has joined is removed before the identity itself.
    own = [layout.kubelet_state, layout.join_token, *with_leftovers(layout.kubelet), layout.kubelet_config]
    # An interrupted write leaves a file beside it.
    own += [
        *layout.data.glob(f".{layout.api_servers.name}.*"),
        layout.api_servers,
        layout.admin_kubeconfig,
        layout.local_kubeconfig,
        *with_leftovers(layout.control_plane),
    ]
    own += [*with_leftovers(layout.former), *with_leftovers(layout.staged.data)]
    own += [*with_leftovers(layout.former_version), layout.before_upgrade]
    logs = sorted(layout.logs.glob("*.log*")) if layout.logs.is_dir() else []
    # The lock is removed last, so that the next command that gets it finds no parts of this installation.
    return [*own, *(path for path in programs if version.fullmatch(path.name)), *logs, layout.lock]


def _end_pods(mac: Mac, name: str) -> None:
    """Delete this Mac's Node, so that its kubelet ends all pods with their grace periods, if the control plane answers."""
    layout = mac.layout
    mac.step("reset", f"stopping the pods of Node {name}")

    async def end() -> None:
        async with cluster.connect(layout, server_url(LOCAL, API_PORT)) as kube:
            await cluster.remove_node(kube, name)

    with contextlib.suppress(ApiError, OSError):
        asyncio.run(end())
        deadline = time.monotonic() + PODS_SECONDS
        while _containers(mac.host, layout.kubelet) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)


def _containers(host: BlockingHost, root: Path) -> dict[int, Path]:
    """The processes that own the kubelet's containers (shims), each with its folder."""
    said = host.run(["ps", "-axww", "-o", "pid=,uid=,command="], PS_SECONDS)
    # On a Mac, /var is a link, and the kubelet names the folder that it leads to.
    real = os.path.realpath(root)
    mark = re.compile(rf"\s*(\d+)\s+0\s.*thunderfleet_kubelet/shim ((?:{re.escape(str(root))}|{re.escape(real)})/\S+)")
    found = {int(match[1]): Path(match[2]) for line in said.text.splitlines() if (match := mark.match(line))}
    return {pid: folder for pid, folder in found.items() if Path(os.path.realpath(folder)).is_relative_to(real)}


def _end_containers(host: BlockingHost, root: Path) -> None:
    """End the remaining containers at once. Raises InstallError if one does not end."""
    deadline = time.monotonic() + PODS_SECONDS
    while left := _containers(host, root):
        if time.monotonic() > deadline:
            pids = ", ".join(map(str, left))
            raise InstallError(f"processes of containers do not exit: {pids}; reboot this Mac, and run this again")
        for pid, folder in left.items():
            # The file that a kubelet writes to end a container without a grace period.
            with contextlib.suppress(OSError):
                _write_stop(folder)
                os.kill(pid, signal.SIGTERM)
        time.sleep(POLL_SECONDS)


def _write_stop(folder: Path) -> None:
    """Raises OSError, also if the file is a link."""
    descriptor = os.open(folder / "stop", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write("0")
