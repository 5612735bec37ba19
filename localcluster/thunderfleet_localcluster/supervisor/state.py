"""The state file of a running cluster, and the answer to ``status``. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thunderfleet_localcluster.cluster_folder import ClusterFolder
from thunderfleet_localcluster.fleet.layout import Layout, MachineLayout
from thunderfleet_localcluster.supervisor.spec import Spec

Json = dict[str, Any]


@dataclass(frozen=True)
class Addresses:
    """Addresses of the cluster for the user's shell and for the machines. ``proxy`` contains the proxy's token."""

    server: str
    inner_server: str
    proxy: str
    ca_hash: str | None
    """None if a Mac has the control plane."""


@dataclass(frozen=True)
class ComponentStatus:
    """A program of the control plane. ``code``: its exit code if it has ended; ``stopped``: it was stopped on command."""

    name: str
    pid: int | None
    code: int | None
    stopped: bool
    log: str
    tail: str
    """Last lines of the log if the program ended by itself."""


@dataclass(frozen=True)
class MachineStatus:
    """A machine: whether it is on, its first process, and its kubelet (``end``: how the kubelet ended)."""

    name: str
    on: bool
    pid: int | None
    kubelet: int | None
    end: str


def cluster_state(spec: Spec, folder: ClusterFolder, layout: Layout, at: Addresses) -> Json:
    """Content of the state file."""
    return {
        "name": spec.name,
        "folder": str(folder.root),
        "network": layout.mode,
        "reason": spec.reason,
        "server": at.server,
        "innerServer": at.inner_server,
        "proxy": at.proxy,
        "kubeconfig": str(folder.kubeconfig),
        "innerKubeconfig": str(folder.inner_kubeconfig),
        "caHash": at.ca_hash,
        "controlPlaneMac": spec.control_plane_mac,
        "assets": spec.assets,
        "logs": str(folder.logs),
        "models": str(folder.models),
        "image": {"name": spec.image.name, "folder": spec.image.folder},
        "machines": [_machine(folder, machine) for machine in layout.machines],
    }


def to_json(state: Json) -> str:
    """The text of the state file."""
    return json.dumps(state, indent=2) + "\n"


def _machine(folder: ClusterFolder, machine: MachineLayout) -> Json:
    return {
        "name": machine.name,
        "kind": machine.machine.kind,
        "model": machine.machine.model,
        "address": str(machine.lan.ip),
        "folder": str(folder.machine(machine.name)),
        "log": str(folder.log(f"kubelet-{machine.name}")),
        "cables": [
            {
                "port": end.port,
                "interface": end.interface,
                "address": str(end.address.ip) if end.address else None,
                "peer": end.peer,
                "peerPort": end.peer_port,
            }
            for end in machine.ends
        ],
    }


def status(
    state: Json,
    starting: bool,
    components: Sequence[ComponentStatus],
    machines: Sequence[MachineStatus],
    nodes: Sequence[Mapping[str, Any]],
) -> Json:
    """The answer to the command ``status``; ``nodes`` are the Nodes of the API server."""
    ready = {str(node["metadata"]["name"]): "Ready" if node_ready(node) else "NotReady" for node in nodes}
    return {
        "state": {**state, "starting": starting},
        "components": [
            {"name": item.name, "pid": item.pid, "end": _end(item), "log": item.log, "tail": item.tail} for item in components
        ],
        "machines": [
            {
                "name": item.name,
                "on": item.on,
                "pid": item.pid,
                "kubelet": item.kubelet,
                "end": item.end,
                "node": ready.get(item.name, "none"),
            }
            for item in machines
        ],
    }


def _end(item: ComponentStatus) -> str:
    if item.pid is not None:
        return ""
    return "stopped" if item.stopped else f"exit code {item.code}"


def node_ready(node: Mapping[str, Any]) -> bool:
    """Whether the Node's condition Ready is True."""
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
