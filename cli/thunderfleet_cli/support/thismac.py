"""The installation on this Mac, for the archive: logs of its LaunchDaemons, and the state of its balancer."""

import asyncio
import json

from thunderfleet_controlplane.balancer.look import look
from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.daemons.plan import BALANCER, BALANCER_PORT, label
from thunderfleet_controlplane.install.mac.facts import own_server

from thunderfleet_cli.support.archive import Archive
from thunderfleet_cli.support.redact import redact_text
from thunderfleet_cli.support.tail import tail

LOGS = 32


def is_installed(layout: HostLayout) -> bool:
    """Whether `thunderfleet init` or `join` has installed something here."""
    return layout.plist(label(BALANCER)).is_file()


def add_this_mac(archive: Archive, layout: HostLayout) -> None:
    """Add the files. Unreadable ones become problems of the archive."""
    found = asyncio.run(look(layout.api_servers, BALANCER_PORT, own_server(layout)))
    archive.add("mac/api-servers.json", json.dumps(found.values(), indent=1) + "\n")
    for path in (layout.thunderbolt_ports, *sorted(layout.logs.glob("*.log"))[:LOGS]):
        name = f"logs/mac/{path.name}" if path.suffix == ".log" else f"mac/{path.name}"
        try:
            archive.add(name, redact_text(tail(path)))
        except FileNotFoundError:
            continue
        except OSError as error:
            archive.problems.append(f"{name}: {error.strerror}; run this with sudo")
