"""All checks of this Mac. Pure.

To add a check:

1. Write a function from ``Answers`` to a ``Check`` in the module of its subject. Output that it cannot parse is a ParseError,
   and the check then ``unknown``. If its fault can be undone, give the ``Check`` a ``Repair``, for ``--fix``.
2. Add its command to ``questions`` and its name to ``checks``.
3. Let recorded Macs have the command: its script in ``recorded.commands`` of the local cluster, and its name in ``COMMANDS`` of
   ``fleet.actions``, so that it can be made to fail. ``doctor`` searches PATH and the folder of the firewall for commands.
4. Add what the command prints on a healthy Mac to ``HEALTHY`` of ``tests/unit/cli/test_doctor_checks.py``, whose tests then
   give the check damaged output too; and name the check in ``docs/install.md`` ("Check").
"""

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
