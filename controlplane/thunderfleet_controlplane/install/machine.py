"""Common input of all steps of an installation: this Mac, the shipped files, and the output for progress."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from thunderfleet_lib.host.hostcmd import BlockingHost

from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.mac.facts import read_facts
from thunderfleet_controlplane.install.mac.launchctl import Launchctl
from thunderfleet_controlplane.install.mac.preflight import Facts


@dataclass(frozen=True)
class Shipped:
    """The contents of the installed distribution. All methods may raise InstallError."""

    version: str
    find_programs: Callable[[], Path]
    """The folder with etcd, Kubernetes, kubectl and Helm; they are built if necessary."""
    find_etcdutl: Callable[[], Path]
    """The folder with etcdutl; it is built if necessary."""
    digest: Callable[[], str]
    """A hash of the Python that runs this, with all packages."""
    build: Callable[[Path, Path], None]
    """Copies this Python into the first folder, to be used as the second."""
    chart: Callable[[Path], Path]
    """The chart of the installation with the Python in this folder."""


@dataclass(frozen=True)
class Mac:
    """This Mac. ``tell`` prints a line of progress."""

    shipped: Shipped
    tell: Callable[[str], None]
    host: BlockingHost = field(default_factory=BlockingHost)

    @property
    def layout(self) -> HostLayout:
        return HostLayout(self.shipped.version)

    @property
    def launchctl(self) -> Launchctl:
        return Launchctl(self.host)

    def facts(self, daemons: tuple[str, ...]) -> Facts:
        """The input of preflight; ``daemons``: the daemons to run."""
        return read_facts(self.host, self.launchctl, self.layout, daemons)

    def step(self, name: str, text: str) -> None:
        """Report that a step begins or what it found."""
        self.tell(f"[{name}] {text}")


def refuse(problems: list[str]) -> None:
    """Raise InstallError with all ``problems``, if there are any."""
    if problems:
        raise InstallError("this Mac is not ready:\n" + "\n".join(f"  - {one}" for one in problems))
