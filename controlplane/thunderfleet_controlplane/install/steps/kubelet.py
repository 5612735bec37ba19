"""The kubelet of this Mac: joining, and its LaunchDaemon."""

import contextlib
import fcntl
import hashlib
import os
import plistlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from thunderfleet_lib.host import yamltext
from thunderfleet_lib.host.hostcmd import BlockingHost, Failure
from thunderfleet_lib.net import tls

from thunderfleet_controlplane.daemons import keys
from thunderfleet_controlplane.daemons.job import INPUTS
from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.daemons.plan import KUBELET, label
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.mac.daemons import put_daemon
from thunderfleet_controlplane.install.mac.files import make_folder, read_json, remove, write, write_json
from thunderfleet_controlplane.install.mac.launchctl import Launchctl

JOIN_SECONDS = 180.0
PLIST_SECONDS = 60.0
POLL_SECONDS = 0.2
LEASE_SECONDS = 40.0
"""For how long the Lease of a kubelet that runs is valid."""
CERTIFICATES = "controlPlaneCertificates"
"""The kubelet's setting for the folder with the certificates of the control plane."""
COMPONENTS = "controlPlaneComponents"
"""The kubelet's setting that scheduler and controller manager run here."""
EXIT_SECONDS = 60.0
"""ExitTimeOut of the kubelet's property list."""


@dataclass(frozen=True)
class Cluster:
    """The cluster that a kubelet joins: the URL of an API server and the hash of the CA's public key."""

    server: str
    ca_hash: str


class KubeletInstaller:
    """Installs the kubelet of this Mac, from the Python in the folder ``python``."""

    def __init__(self, layout: HostLayout, launchctl: Launchctl, python: Path, environment: Mapping[str, str]) -> None:
        self._layout, self._launchctl, self._environment = layout, launchctl, environment
        self._program = python / "bin" / "thunderfleet-kubelet"
        # The kubelet looks up its own path on PATH when it writes its property list.
        self._host = BlockingHost([python / "bin"], {**os.environ, **environment})

    def _files(self) -> list[str]:
        return ["--root", str(self._layout.kubelet), "--config", str(self._layout.kubelet_config)]

    def write_config(self, name: str, given: Path | None, thunderbolt_ports: str | None = None, *, control_plane: bool) -> None:
        """Write the kubelet's configuration: the file ``given``, else the one from an earlier run, with the Node's name.

        ``thunderbolt_ports``: the value of thunderboltPorts; None leaves it as it is. ``control_plane``: whether this Mac has
        one.

        Raises InstallError.
        """
        content: Any = {}
        if given is None and self._layout.kubelet_config.exists():
            given = self._layout.kubelet_config
        if given is not None:
            try:
                content = yamltext.load(given.read_text(encoding="utf-8")) or {}
            except (OSError, ValueError) as error:
                raise InstallError(f"cannot read {given}: {error}", usage=True) from None
        if not isinstance(content, dict):
            raise InstallError(
                f"{given} is not a configuration of the kubelet: write settings as NAME: VALUE (docs/reference/files.md)",
                usage=True,
            )
        ports = {} if thunderbolt_ports is None else {"thunderboltPorts": thunderbolt_ports}
        content = {**content, **ports, "nodeName": name, "apiServersFile": str(self._layout.api_servers)}
        if control_plane:
            content |= {CERTIFICATES: str(self._layout.pki.folder), COMPONENTS: True}
        else:
            # The file may come from a Mac with a control plane.
            for setting in (CERTIFICATES, COMPONENTS):
                content.pop(setting, None)
        make_folder(self._layout.data, 0o755)
        write(self._layout.kubelet_config, yaml.safe_dump(content, sort_keys=False).encode(), 0o644)

    def joined(self, name: str, cluster: Cluster) -> bool:
        """Whether this Mac has joined ``cluster`` under this name, and its certificate is still there and valid."""
        known = {"name": name, "server": cluster.server, "caHash": cluster.ca_hash}
        return read_json(self._layout.kubelet_state) == known and self._has_identity(name, cluster)

    def _has_identity(self, name: str, cluster: Cluster) -> bool:
        identity = self._layout.kubelet / "identity"
        known = read_json(identity / "cluster.json")
        if (known.get("nodeName"), known.get("server")) != (name, cluster.server):
            return False
        try:
            client = x509.load_pem_x509_certificate((identity / "client.pem").read_bytes())
        except (OSError, ValueError):
            return False
        return client.not_valid_after_utc > datetime.now(UTC)

    def join(self, name: str, cluster: Cluster, token: str, *, replace: bool) -> None:
        """Get the kubelet's certificates. Raises InstallError."""
        self._launchctl.unload(label(KUBELET), EXIT_SECONDS)
        self._until_free()
        identity = self._layout.kubelet / "identity"
        server, authority = (
            read_json(identity / "cluster.json").get("server"),
            read_json(self._layout.kubelet_state).get("caHash"),
        )
        if server not in (None, cluster.server) or authority not in (None, cluster.ca_hash):
            # The identity belongs to another control plane.
            remove(identity)
        remove(self._layout.kubelet_state)
        # A file, because every user of this Mac can read command lines.
        tls.write_private(self._layout.join_token, token.encode())
        try:
            self._run(
                JOIN_SECONDS,
                *("join", "--no-run", "--server", cluster.server, "--ca-hash", cluster.ca_hash),
                *("--token-file", str(self._layout.join_token), *self._files(), *["--replace"] * replace),
            )
        finally:
            remove(self._layout.join_token)
        write_json(self._layout.kubelet_state, {"name": name, "server": cluster.server, "caHash": cluster.ca_hash})

    def _until_free(self) -> None:
        """Wait until no kubelet uses the folder. A kubelet of an interrupted run may still be joining."""
        lock = self._layout.kubelet / "kubelet.lock"
        deadline = time.monotonic() + JOIN_SECONDS
        while lock.exists():
            with lock.open("a") as file, contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            if time.monotonic() > deadline:
                raise InstallError(f"another kubelet uses {self._layout.kubelet}: end it, and run this again")
            time.sleep(POLL_SECONDS)

    def start(self, inputs: str) -> datetime:
        """Start the kubelet as a LaunchDaemon. Its Lease must be renewed after the returned time. Raises InstallError."""
        make_folder(self._layout.logs, 0o755)
        log = self._layout.log(KUBELET)
        spec = plistlib.loads(self._run(PLIST_SECONDS, "launchd-plist", *self._files(), "--log-file", str(log)).encode())
        spec["ProgramArguments"][0] = str(self._program)
        config = self._layout.kubelet_config.read_text(encoding="utf-8")
        spec["EnvironmentVariables"] = {**self._environment, INPUTS: f"{inputs}-{_short(config)}"}
        text = plistlib.dumps(spec)
        path = self._layout.plist(label(KUBELET))
        if wrong := keys.problems(text, path.name):
            raise InstallError(f"the kubelet's property list is invalid: {'; '.join(wrong)}; install thunderfleet again")
        # The former kubelet may renew the Lease until it has ended.
        began = put_daemon(self._launchctl, path, label(KUBELET), text, EXIT_SECONDS)
        return began or datetime.now(UTC) - timedelta(seconds=LEASE_SECONDS)

    def _run(self, seconds: float, *arguments: str) -> str:
        said = self._host.run([str(self._program), *arguments], seconds)
        if isinstance(said, Failure):
            raise InstallError(said.error.strip().splitlines()[-1] if said.error.strip() else str(said))
        return said.text


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
