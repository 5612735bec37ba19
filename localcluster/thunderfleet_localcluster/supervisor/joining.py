"""Kubelets: bootstrap tokens, starting and joining, waiting until Nodes are Ready."""

import asyncio
import secrets
import string
import time
from datetime import UTC, datetime, timedelta

from thunderfleet_controlplane.tokens import bootstrap_token
from thunderfleet_lib.host.trees import tail
from thunderfleet_lib.net.tls import write_private

from thunderfleet_localcluster.cluster_folder import ClusterFolder
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.machines.machine import MachineProcess
from thunderfleet_localcluster.supervisor.control_plane import ControlPlane
from thunderfleet_localcluster.supervisor.machine_pool import MachinePool
from thunderfleet_localcluster.supervisor.spec import Spec
from thunderfleet_localcluster.supervisor.state import node_ready

NODES_SECONDS = 120
POLL_SECONDS = 0.2
TOKEN_HOURS = 1
TOKEN_FILE = "join-token"
SECRETS = "/api/v1/namespaces/kube-system/secrets"


class Joining:
    """Starts kubelets, with a bootstrap token until their machine has joined."""

    def __init__(self, folder: ClusterFolder, spec: Spec, control_plane: ControlPlane, pool: MachinePool) -> None:
        self.folder, self.spec, self.control_plane, self.pool = folder, spec, control_plane, pool
        self.joined: set[str] = set()
        self._tokens: dict[str, str] = {}

    async def join_all(self) -> None:
        """Start every kubelet, wait until every Node is Ready, and remove the tokens."""
        await asyncio.gather(*(self.start_kubelet(machine) for machine in self.pool.machines.values()))
        await self._nodes_ready()
        await self._remove_tokens()

    async def start_kubelet(self, machine: MachineProcess) -> None:
        """Start the kubelet of a machine. Raises LocalClusterError."""
        if self.spec.kubelet is None:
            raise LocalClusterError(
                "this cluster was started without kubelets; stop it and start it again without --no-machines"
            )
        home = self.folder.machine(machine.name)
        files = ["--root", str(home / "kubelet"), "--config", str(home / "kubelet.yaml")]
        command = ["run"]
        if machine.name not in self.joined:
            token = self._tokens[machine.name] = await self.make_token(f"for {machine.name}", machine.name)
            # A file, because every user of the machine can read command lines.
            write_private(home / TOKEN_FILE, token.encode())
            command = ["join", "--server", self.control_plane.at.server, "--token-file", str(home / TOKEN_FILE)]
            command += ["--ca-hash", self.control_plane.pki.ca_hash]
        await machine.start_kubelet([*self.spec.kubelet, *command, *files], self.folder.log(f"kubelet-{machine.name}"))

    async def _remove_tokens(self) -> None:
        for name, token in self._tokens.items():
            (self.folder.machine(name) / TOKEN_FILE).unlink(missing_ok=True)
            await self.control_plane.kube.delete(f"{SECRETS}/bootstrap-token-{token.split('.')[0]}")
        self.joined |= set(self._tokens)
        self._tokens.clear()

    async def make_token(self, description: str, node: str | None = None) -> str:
        """Create a bootstrap token that is valid for an hour.

        ``node``: the only Node that may join with it, also if it exists; None for any that does not exist yet. Raises
        LocalClusterError if no token can be bound to that name.
        """
        alphabet = string.ascii_lowercase + string.digits
        identifier, secret = ("".join(secrets.choice(alphabet) for _ in range(length)) for length in (6, 16))
        expires = (datetime.now(UTC) + timedelta(hours=TOKEN_HOURS)).strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            body = bootstrap_token(identifier, secret, expires, description, node)
        except ValueError as error:
            raise LocalClusterError(str(error), usage=True) from None
        await self.control_plane.kube.create(SECRETS, body)
        return f"{identifier}.{secret}"

    async def _nodes_ready(self) -> None:
        deadline = time.monotonic() + NODES_SECONDS
        while True:
            nodes, _ = await self.control_plane.kube.list("/api/v1/nodes")
            ready = {str(node["metadata"]["name"]) for node in nodes if node_ready(node)}
            missing = [machine for name, machine in self.pool.machines.items() if name not in ready]
            if not missing:
                return
            for machine in missing:
                if machine.kubelet_pid is None:
                    raise LocalClusterError(
                        f"the kubelet of {machine.name} ended ({machine.kubelet_end}); {_last_lines(machine)}"
                    )
            if time.monotonic() > deadline:
                names = ", ".join(machine.name for machine in missing)
                raise LocalClusterError(f"Nodes not Ready after {NODES_SECONDS} s: {names}; {_last_lines(missing[0])}")
            await asyncio.sleep(POLL_SECONDS)


def _last_lines(machine: MachineProcess) -> str:
    return f"the last lines of {machine.log_file}:\n{tail(machine.log_file)}"
