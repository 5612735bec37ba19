"""Whether the RDMA devices of the plan can be used now, checked before a rank starts.

JACCL would fail too, but later, on one rank while the others wait, and with an error that names neither the device nor a
remedy. ``judge`` decides, by the rules that the agent and the operator use too; ``read`` runs the commands.
"""

from dataclasses import dataclass, field

from thunderfleet_crds.reasons import Reason
from thunderfleet_lib.host.hostcmd import BlockingHost, FailureKind, Output
from thunderfleet_lib.host.parsing import ParseError
from thunderfleet_lib.rdma import parse, rules

from thunderfleet_runner.faults import Fault

SECONDS = 15.0
"""Time limit of one command: it takes milliseconds, but a busy Mac is not a broken one."""
IFCONFIG_COMMAND = ("ifconfig",)


@dataclass(frozen=True)
class Reading:
    """The output of a Mac's RDMA commands."""

    stack: rules.Stack
    listed: tuple[str, ...] = ()
    devices: dict[str, parse.DeviceInfo] = field(default_factory=dict)
    bridges: dict[str, str] = field(default_factory=dict)
    """Interface to the bridge that it is a member of."""


class CannotRead(Exception):
    """A command did not answer, which is itself a fault."""

    def __init__(self, reason: Reason, evidence: str) -> None:
        super().__init__(evidence)
        self.reason = reason


def check(host: BlockingHost, node: str, wanted: tuple[str, ...]) -> Fault | None:
    """Why a requested device cannot be used, or None."""
    try:
        return judge(node, wanted, read(host))
    except CannotRead as error:
        evidence = f"on {node}, {error}"
        text = evidence if error.reason is Reason.COMMAND_FAILED else rules.explain(error.reason, node, evidence=evidence)
        return Fault(rules.FAULT_CLASS[error.reason], error.reason, text)


def judge(node: str, wanted: tuple[str, ...], reading: Reading) -> Fault | None:
    """Like ``check``, from the output that was read."""
    ports = [_port(name, reading) for name in wanted]
    found = rules.first_fault((reading.stack, port) for port in ports)
    if found is None:
        return None
    reason, index = found
    return Fault(rules.FAULT_CLASS[reason], reason, rules.explain(reason, node, ports[index]))


def _port(name: str, reading: Reading) -> rules.Port:
    device, interface = reading.devices.get(name, parse.DeviceInfo(name)), rules.interface_of(name)
    return rules.Port(
        device=name,
        interface=interface,
        state=parse.port_state(device.state) if name in reading.listed else None,
        bridge=reading.bridges.get(interface or ""),
        mapped=device.gid is not None,
    )


def read(host: BlockingHost) -> Reading:
    """Runs ibv_devices and then, if it lists devices, ibv_devinfo and ifconfig, else rdma_ctl. Raises CannotRead."""
    try:
        listed = parse.parse_devices(_run(host, parse.DEVICES_COMMAND))
        if not listed:
            enabled = parse.parse_status(_run(host, parse.STATUS_COMMAND))
            return Reading(rules.Stack(enabled=enabled, has_devices=False))
        described = parse.parse_devinfo(_run(host, parse.DEVINFO_COMMAND))
        bridges = parse.parse_bridges(_run(host, IFCONFIG_COMMAND))
    except ParseError as error:
        raise CannotRead(Reason.COMMAND_FAILED, str(error)) from error
    return Reading(rules.Stack(), listed, {device.name: device for device in described}, bridges)


def _run(host: BlockingHost, command: tuple[str, ...]) -> str:
    outcome = host.run(command, SECONDS)
    if isinstance(outcome, Output):
        return outcome.text
    if parse.NO_DEVICES_TEXT in outcome.text + outcome.error:
        return parse.NO_DEVICES_TEXT
    reason = Reason.COMMAND_FAILED
    if command != IFCONFIG_COMMAND:
        kinds = {FailureKind.TIMED_OUT: Reason.STACK_HUNG, FailureKind.ABSENT: Reason.RDMA_UNSUPPORTED}
        reason = kinds.get(outcome.kind, reason)
    raise CannotRead(reason, str(outcome))
