"""The connection from this Mac to the API servers: the balancer, and the check of the CA before anything is trusted."""

import socket
import ssl
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from thunderfleet_lib.net import tls
from thunderfleet_lib.net.discovery import ca_hash, choose_ca, shown, unverified

from thunderfleet_controlplane.balancer import disk
from thunderfleet_controlplane.balancer.servers import ApiServer, bounded
from thunderfleet_controlplane.daemons.plan import BALANCER, BALANCER_PORT, LOCAL, balancer, label
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.mac.daemons import put_daemon, why_not
from thunderfleet_controlplane.install.mac.files import make_folder
from thunderfleet_controlplane.install.machine import Mac

LISTEN_SECONDS = 60.0
CONNECT_SECONDS = 10.0
POLL_SECONDS = 0.1


def put_balancer(
    mac: Mac, python: Path, environment: Mapping[str, str], servers: Iterable[ApiServer], *, control_plane: bool
) -> None:
    """Start the balancer, and add ``servers`` to its list. Raises InstallError."""
    layout = mac.layout
    make_folder(layout.data, 0o755)
    make_folder(layout.logs, 0o755)
    disk.write(layout.api_servers, bounded((*servers, *disk.read(layout.api_servers))))
    daemon = balancer(layout, environment, python, control_plane=control_plane, version=mac.shipped.version)
    path = layout.plist(daemon.label)
    started = put_daemon(mac.launchctl, path, daemon.label, daemon.to_plist(), daemon.exit_seconds)
    mac.step("daemons", f"{daemon.label}: {'started' if started else 'unchanged'}")
    deadline = time.monotonic() + LISTEN_SECONDS
    while not _accepts():
        if time.monotonic() > deadline:
            raise InstallError(
                f"the balancer does not listen on {LOCAL}:{BALANCER_PORT}\n"
                + why_not(mac.launchctl, layout, BALANCER, label(BALANCER))
            )
        time.sleep(POLL_SECONDS)


def _accepts() -> bool:
    try:
        with socket.create_connection((LOCAL, BALANCER_PORT), timeout=CONNECT_SECONDS):
            return True
    except OSError:
        return False


def find_ca(servers: Iterable[ApiServer], wanted: str) -> bytes:
    """The CA (PEM) with the hash ``wanted`` of the first API server that shows it. Sends nothing secret.

    Raises InstallError with the problem of each server.
    """
    refusals = []
    for server in servers:
        try:
            with (
                socket.create_connection((server.host, server.port), timeout=CONNECT_SECONDS) as plain,
                unverified().wrap_socket(plain) as connection,
            ):
                seen = shown(connection)
        except ssl.SSLError as error:
            refusals.append(f"{server}: not a TLS server ({error.reason}); check that this is the API server's port")
            continue
        except (OSError, ValueError) as error:
            refusals.append(f"{server}: cannot connect ({error}); check that the API server is running, and the network")
            continue
        if (found := choose_ca(seen, wanted)) is not None:
            return tls.certificate_pem(found)
        hashes = ", ".join(map(ca_hash, seen)) or "none"
        refusals.append(
            f"{server}: no CA with hash {wanted}, found {hashes}; the token was not sent: this is another cluster, or the "
            "connection is intercepted; use a new line, which a Mac with a control plane prints"
        )
    raise InstallError("no API server of the cluster answers:\n" + "\n".join(refusals))
