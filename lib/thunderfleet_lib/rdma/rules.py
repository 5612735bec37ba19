"""Whether RDMA works on a port: one table of rules for the agent, the operator and the runner. Pure.

The agent applies it to its Mac (condition RDMAReady), the operator to both ends of a cable (RDMAUsable) and the runner to the
devices of its plan before it starts a rank. So one fault has one reason in all three. A cause comes before its effects: with
RDMA disabled, the device is also missing, and at the other end of the cable the port is also down.

To add a rule, add a reason to ``thunderfleet_crds.reasons``, then a line each to one of the two tables of rules, to
``FAULT_CLASS`` and to ``_EXPLANATIONS``. If the rule needs a new fact, add it to ``Stack`` or ``Port`` and set it wherever one
is made: ``derive/rdma_ready`` and ``inspection/problems`` of the agent, ``decide/link_status`` of the operator (which reads the
reason that the agent published) and ``host/rdma`` of the runner. Otherwise they report different reasons for one fault. For a
whole Mac the agent has messages of its own for BridgeMember and PortDown (``derive/rdma_ready``).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import FaultClass, RDMADeviceState

from thunderfleet_lib.macnet import advice

LEAST_MACOS: Final = (26, 3)
"""26.2 has RDMA over Thunderbolt too, but sends frames of another size, which newer versions do not understand."""
LEAST_MACOS_TEXT: Final = f"macOS {'.'.join(map(str, LEAST_MACOS))} or newer"

DEVICE_PREFIX: Final = "rdma_"
"""A device is named after its interface: rdma_en2 belongs to en2."""


def too_old(macos: str | None) -> bool:
    """Whether RDMA must not be used with this version of macOS, such as 26.2. False if it is not known."""
    numbers = (macos or "").split(".")
    return all(number.isdecimal() for number in numbers) and tuple(map(int, numbers)) < LEAST_MACOS


def interface_of(device: str) -> str | None:
    """The network interface of an RDMA device; None for a name of another form."""
    interface = device.removeprefix(DEVICE_PREFIX)
    return interface if interface and interface != device else None


@dataclass(frozen=True, slots=True)
class Stack:
    """The RDMA stack of one Mac. None: not known, which is no fault."""

    supported: bool = True
    hung: bool = False
    """A command of the stack did not return in time."""
    enabled: bool | None = None
    has_devices: bool | None = None


@dataclass(frozen=True, slots=True)
class Port:
    """The facts about one Thunderbolt port of a Mac that RDMA depends on."""

    device: str | None
    interface: str | None
    state: RDMADeviceState | None
    """None: the device is not listed."""
    bridge: str | None = None
    """The bridge that the interface is a member of."""
    mapped: bool = False
    """Whether the device has a GID of an IPv4 address."""
    address: str | None = None
    """The IPv4 address of the interface, if known; only for the message."""


_STACK_RULES: Final[tuple[tuple[Reason, Callable[[Stack], bool]], ...]] = (
    (Reason.STACK_HUNG, lambda stack: stack.hung),
    (Reason.RDMA_UNSUPPORTED, lambda stack: not stack.supported),
    (Reason.RDMA_DISABLED, lambda stack: stack.enabled is False),
    (Reason.NO_DEVICES, lambda stack: stack.has_devices is False),
)
_PORT_RULES: Final[tuple[tuple[Reason, Callable[[Port], bool]], ...]] = (
    (Reason.DEVICE_MISSING, lambda port: port.device is None or port.state is None),
    (Reason.BRIDGE_MEMBER, lambda port: port.bridge is not None),
    (Reason.PORT_DOWN, lambda port: port.state is not RDMADeviceState.ACTIVE),
    (Reason.NO_IPV4_ADDRESS, lambda port: not port.mapped),
)

FAULT_CLASS: Final = {
    Reason.STACK_HUNG: FaultClass.REBOOT,
    Reason.RDMA_UNSUPPORTED: FaultClass.CONFIGURE,
    Reason.RDMA_DISABLED: FaultClass.CONFIGURE,
    Reason.NO_DEVICES: FaultClass.REPLAN,
    Reason.DEVICE_MISSING: FaultClass.REPLAN,
    Reason.BRIDGE_MEMBER: FaultClass.CONFIGURE,
    Reason.PORT_DOWN: FaultClass.REPLAN,
    Reason.NO_IPV4_ADDRESS: FaultClass.CONFIGURE,
    Reason.COMMAND_FAILED: FaultClass.RETRY,
}
"""The fault class of an RDMA fault that stops a rank."""


def stack_fault(stack: Stack) -> Reason | None:
    """Why RDMA works on no port of the Mac; None if the stack has no fault."""
    return next((reason for reason, applies in _STACK_RULES if applies(stack)), None)


def port_fault(port: Port) -> Reason | None:
    """Why RDMA does not work on a port of a Mac whose stack works; None when it does."""
    return next((reason for reason, applies in _PORT_RULES if applies(port)), None)


def first_fault(ends: Iterable[tuple[Stack, Port]]) -> tuple[Reason, int] | None:
    """The fault of several ports that comes first in the tables, and the index of its port; None when all of them work."""
    faults = ((stack_fault(stack) or port_fault(port), index) for index, (stack, port) in enumerate(ends))
    found = [(reason, index) for reason, index in faults if reason is not None]
    return min(found, key=lambda fault: _rank(fault[0]), default=None)


_ORDER: Final = [reason for reason, _ in (*_STACK_RULES, *_PORT_RULES)]


def _rank(reason: Reason) -> int:
    return _ORDER.index(reason)


def explain(reason: Reason, mac: str, port: Port | None = None, evidence: str = "") -> str:
    """The fault in words, and what to do. ``mac`` names the Mac; ``evidence`` is what a command said."""
    text = _EXPLANATIONS[reason](mac, port or Port(None, None, None))
    return f"{evidence}; {text}" if evidence else text


def _bridge(mac: str, port: Port) -> str:
    return f"{port.interface} of {mac} is a member of {port.bridge}: {advice.leave_bridge(mac)}"


def _down(mac: str, port: Port) -> str:
    state = port.state.value if port.state else "not listed"
    return (
        f"{port.device} of {mac} is {state}, not Active: check the cable, check that RDMA is enabled at the other end, replug "
        f"the cable to reset the port; `ibv_devinfo -v` on {mac} shows the state"
    )


def _no_address(mac: str, port: Port) -> str:
    found = f"{port.device} of {mac} has no GID of an IPv4 address"
    if port.address:
        # The address of the interface is right; only the RDMA stack has not noticed it.
        again = f"`sudo ifconfig {port.interface} inet {port.address}`"
        return f"{found}, though {port.interface} has {port.address}: run {again} on {mac} to set it again, or replug the cable"
    return f"{found}: {advice.set_address(mac)}"


_EXPLANATIONS: Final[dict[Reason, Callable[[str, Port], str]]] = {
    Reason.STACK_HUNG: lambda mac, _: f"the RDMA stack of {mac} does not answer: reboot {mac} (`sudo shutdown -r now`)",
    Reason.RDMA_UNSUPPORTED: lambda mac, _: (
        f"{mac} cannot use RDMA over Thunderbolt, which needs {LEAST_MACOS_TEXT}: update {mac}"
    ),
    Reason.RDMA_DISABLED: lambda mac, _: (
        f"RDMA is disabled on {mac}: start {mac} in Recovery, run `rdma_ctl enable` in Terminal, and restart"
    ),
    Reason.NO_DEVICES: lambda mac, _: f"`ibv_devices` lists no device on {mac}: RDMA needs a Mac with Thunderbolt 5",
    Reason.DEVICE_MISSING: lambda mac, port: (
        f"{mac} does not list {port.device or 'an RDMA device for the port'}: replug the cable, then run "
        f"`ibv_devices` on {mac}; if it does not list the device either, reboot {mac}"
    ),
    Reason.BRIDGE_MEMBER: _bridge,
    Reason.PORT_DOWN: _down,
    Reason.NO_IPV4_ADDRESS: _no_address,
}
