"""The identity of a node that has joined: server, name and certificates in one folder."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from thunderfleet_lib.host.privatefiles import write_private
from thunderfleet_lib.kube import Kube

from thunderfleet_kubelet.bootstrap.arguments import Server
from thunderfleet_kubelet.bootstrap.certificates import Pair, read_pair, usable
from thunderfleet_kubelet.bootstrap.errors import JoinError, join_again


@dataclass(frozen=True)
class NodeIdentity:
    """A node that has joined a cluster; its files are in ``folder``."""

    folder: Path
    server: str
    node_name: str
    config_file: Path | None

    @property
    def ca(self) -> Path:
        """The cluster's CA."""
        return self.folder / "ca.crt"

    @property
    def client(self) -> Path:
        """Client key and certificate."""
        return self.folder / "client.pem"

    @property
    def serving(self) -> Path:
        """Server key and certificate; missing until the first one is signed."""
        return self.folder / "serving.pem"

    @property
    def answers(self) -> Path:
        """What processes have answered about the certificates and the configuration."""
        return self.folder / "answers.json"

    def kube(self) -> Kube:
        """A new client with the credentials on disk."""
        return Kube.with_files(self.server, self.ca, certificate=self.client, key=self.client)


def identity_folder(root: Path) -> Path:
    """The folder of the identity."""
    return root / "identity"


def load_identity(root: Path) -> NodeIdentity | None:
    """The identity in ``root``; None if it has not joined. Raises JoinError if the file is damaged."""
    folder = identity_folder(root)
    file = folder / "cluster.json"
    try:
        known = json.loads(file.read_text())
        config = known.get("configFile")
        return NodeIdentity(folder, str(known["server"]), str(known["nodeName"]), Path(config) if config else None)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise JoinError(f"{file}: cannot read ({error}); delete {folder} and {join_again(options=' --replace')}") from None


def save_identity(root: Path, server: Server, node_name: str, config_file: Path | None, ca: bytes, pair: Pair) -> NodeIdentity:
    """Writes all files, ``cluster.json`` last: it exists only if the others do."""
    root.mkdir(parents=True, exist_ok=True)
    folder = identity_folder(root)
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    identity = NodeIdentity(folder, server.url, node_name, config_file)
    write_private(identity.ca, ca)
    write_private(identity.client, pair.pem)
    identity.serving.unlink(missing_ok=True)
    known = {"server": server.url, "nodeName": node_name, "configFile": str(config_file) if config_file else None}
    write_private(folder / "cluster.json", json.dumps(known, indent=2).encode() + b"\n")
    return identity


def usable_identity(root: Path, server: Server | None, node_name: str | None) -> NodeIdentity | None:
    """The identity in ``root``; None without one, or if its certificate has expired.

    Raises JoinError if it is for another ``server`` or ``node_name`` (None accepts any), and if it is not valid yet.
    """
    identity = load_identity(root)
    if identity is None:
        return None
    if server is not None and identity.server != server.url:
        raise JoinError(
            f"{root} has the identity of a node of {identity.server}, not of {server.url}; use another --root, or delete "
            f"{identity.folder} if that cluster no longer exists"
        )
    if node_name is not None and identity.node_name != node_name:
        raise JoinError(
            f"{root} has the identity of node {identity.node_name}, not of {node_name}; use another --root, or "
            f"set nodeName: {identity.node_name} in the file of --config; for `thunderfleet join`, use --name "
            f"{identity.node_name}, or run `sudo thunderfleet reset` first"
        )
    pair, now = read_pair(identity.client), datetime.now(UTC)
    if pair is not None and now < pair.facts.starts:
        raise JoinError(
            f"the certificate in {identity.folder} is valid from {pair.facts.starts:%Y-%m-%d %H:%M} UTC, and the "
            f"clock of this machine says {now:%Y-%m-%d %H:%M} UTC; set the clock"
        )
    if pair is None or not usable(pair, identity.node_name, now):
        return None
    return identity
