"""All checks of this Mac. Pure."""

from collections.abc import Callable, Mapping
from functools import partial

from thunderfleet_lib.host import gpu_memory
from thunderfleet_lib.host.parsing import ParseError
from thunderfleet_lib.rdma.parse import DEVICES_COMMAND, STATUS_COMMAND

from thunderfleet_cli.doctor.checks import network, power, security, system
from thunderfleet_cli.doctor.checks.check import Answers, Argv, Check, State

SECONDS = 10.0
SLOW_SECONDS = 20.0


def questions(python: str) -> Mapping[Argv, float]:
    """The commands whose output the checks need, and how long each may take in seconds."""
    quick: tuple[Argv, ...] = (
        STATUS_COMMAND,
        DEVICES_COMMAND,
        power.CUSTOM,
        power.LIVE,
        power.THERM,
        security.GLOBAL,
        security.BLOCK_ALL,
        security.application(python),
        security.FILEVAULT,
        system.VERSION,
        system.DISK,
        system.MEMORY,
        gpu_memory.COMMAND,
        network.ROUTE,
        network.INTERFACES,
        network.PORTS,
        network.SERVICES,
    )
    # This command sends a request to a server, and repeats it if there is no answer.
    return {**dict.fromkeys(quick, SECONDS), system.CLOCK: SLOW_SECONDS}


def checks(answers: Answers, python: str, managed: bool = False, kept: bool = False) -> list[Check]:
    """Every check; one whose commands failed or printed something unknown is ``unknown``.

    ``managed``: the kubelet of this Mac keeps Thunderbolt ports out of bridges. ``kept``: the limit of GPU memory is set again
    after each restart.
    """
    looks: Mapping[str, Callable[[Answers], Check]] = {
        "macos": system.macos,
        "rdma": system.rdma,
        "thunderbolt-bridge": partial(network.bridge, managed=managed),
        "ethernet": network.ethernet,
        "sleep": power.sleep,
        "restart-after-power-loss": power.restart,
        "filevault": security.filevault,
        "firewall": partial(security.firewall, python=python),
        "local-network": security.local_network,
        "clock": system.clock,
        "disk": system.disk,
        "gpu-memory": partial(system.gpu_memory, kept=kept),
        "thermal": power.thermal,
    }
    return [_looked(name, look, answers) for name, look in looks.items()]


def _looked(name: str, look: Callable[[Answers], Check], answers: Answers) -> Check:
    try:
        return look(answers)
    except ParseError as error:
        return Check(name, State.UNKNOWN, str(error))
