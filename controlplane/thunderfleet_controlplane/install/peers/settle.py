"""Makes the etcd of this Mac a voting member at the Mac's current address."""

import time
from collections.abc import Callable

from thunderfleet_controlplane.balancer import disk
from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.daemons.plan import HostConfig, label
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.mac.daemons import why_not
from thunderfleet_controlplane.install.machine import Mac
from thunderfleet_controlplane.install.peers.members import Etcd, EtcdError
from thunderfleet_controlplane.install.peers.quorum import Member

SECONDS = 180.0
POLL_SECONDS = 0.3


def has_data(layout: HostLayout) -> bool:
    """Whether the etcd of this Mac has started as a member."""
    return any((layout.etcd / "member" / "wal").glob("*.wal"))


def check_data(config: HostConfig) -> None:
    """Raise InstallError if this Mac was a member, and has lost its data: it cannot go on as the same member."""
    layout = config.layout
    if config.shared and not has_data(layout) and not layout.joining.exists():
        raise InstallError(
            f"etcd's data in {layout.etcd} are missing. If other Macs have a control plane, run `sudo thunderfleet reset "
            f"--force` here, `sudo thunderfleet reset --member {config.name}` on one of them, and join again; otherwise "
            "restore a backup"
        )


def etcd_of(config: HostConfig) -> Etcd:
    """All known etcds, this Mac's own first."""
    return Etcd(config.layout.pki, (one.host for one in disk.read(config.layout.api_servers)))


def settle(mac: Mac, config: HostConfig, etcd: Etcd | None = None) -> None:
    """Wait until the etcd of this Mac is a voting member, and the others have its address. Raises InstallError."""
    etcd = etcd or etcd_of(config)
    mac.step("etcd", "waiting for etcd")

    def step() -> str:
        # Before it has a vote, only other members answer. Without them, etcd cannot change anything.
        mine = _mine(etcd, config)
        if mine is None:
            return "this Mac is not a member of etcd; `sudo thunderfleet reset` removes what is left here"
        if config.peer_url not in mine.peer_urls:
            mac.step("etcd", f"sending the other members the new address {config.address}")
            etcd.move(mine, config.peer_url)
        if mine.learner:
            etcd.promote(mine)
            mac.step("etcd", f"{config.etcd_name} has all data and is now a voting member")
        return ""

    until(step, lambda: why_not(mac.launchctl, mac.layout, "etcd", label("etcd")))


def _mine(etcd: Etcd, config: HostConfig) -> Member | None:
    members, own = etcd.members(), etcd.own_id()
    return next((one for one in members if one.id == own), None)


def until(step: Callable[[], str], describe: Callable[[], str], seconds: float = SECONDS) -> None:
    """Repeat until ``step`` returns an empty text. Raises InstallError with its last text and that of ``describe``."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            text = step()
        except EtcdError as error:
            text = str(error)
        if not text:
            return
        if time.monotonic() > deadline:
            raise InstallError(f"after {seconds:.0f} s etcd is not ready: {text}\n{describe()}")
        time.sleep(POLL_SECONDS)
