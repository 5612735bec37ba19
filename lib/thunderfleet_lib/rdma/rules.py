"""Whether RDMA works on a port: one table of rules for the agent, the operator and the runner. Pure.

The agent applies it to its Mac (condition RDMAReady), the operator to both ends of a cable (RDMAUsable) and the runner to the
devices of its plan before it starts a rank. So one fault has one reason in all three. A cause comes before its effects: with
RDMA disabled, the device is also missing, and at the other end of the cable the port is also down.

To add a rule:

1. Add a reason to ``thunderfleet_crds.reasons`` (also to ``WITHOUT_RDMA`` there if no user can repair the fault), and a rule
   with it to one of the two tables here.
2. Show in ``SHOWN`` of ``tests/unit/lib/rdma/test_rdma_one_reason.py`` how the output of a Mac's commands changes. That test
   compares all programs. If the rule needs a new fact, add it to ``Stack`` or ``Port``; the test then names each program that
   does not set it: the agent (``derive/rdma_ready``; ``inspection/problems`` for ``inspect``), the operator
   (``decide/link_status``) or the runner (``host/rdma``). What the operator needs of a port has to be in the NodeProfile
   (``derive/thunderbolt`` of the agent); it gets a fault of the stack as the reason that the agent published.
3. Run ``make crds docs``.

For a whole Mac the agent has messages of its own for BridgeMember and PortDown (``derive/rdma_ready``).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import FaultClass, RDMADeviceState

from thunderfleet_lib.macnet import advice

LEAST_MACOS: Final = (26, 3)
"""26.2 has RDMA over Thunderbolt too, but sends frames of another size, which newer versions reject."""
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
    reported: str | None = None
    """The reason of RDMAReady that the agent of the Mac has published. Where it is known, the other facts need not be."""


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


@dataclass(frozen=True, slots=True)
class StackRule:
    """A fault of the RDMA stack of a Mac. ``words``: the fault and what to do, from the name of the Mac."""

    reason: Reason
    fault_class: FaultClass
    """If it stops a rank."""
    applies: Callable[[Stack], bool]
    words: Callable[[str], str]


@dataclass(frozen=True, slots=True)
class PortRule:
    """A fault of one port. ``words``: the fault and what to do, from the name of the Mac and the port."""

    reason: Reason
    fault_class: FaultClass
    """If it stops a rank."""
    applies: Callable[[Port], bool]
    words: Callable[[str, Port], str]


STACK_RULES: Final = (
    StackRule(
        Reason.STACK_HUNG,
        FaultClass.REBOOT,
        lambda stack: stack.hung,
        lambda mac: f"the RDMA stack of {mac} does not answer: reboot {mac} (`sudo shutdown -r now`)",
    ),
    StackRule(
        Reason.RDMA_UNSUPPORTED,
        FaultClass.CONFIGURE,
        lambda stack: not stack.supported,
        lambda mac: f"{mac} cannot use RDMA over Thunderbolt, which needs {LEAST_MACOS_TEXT}: update {mac}",
    ),
    StackRule(
        Reason.RDMA_DISABLED,
        FaultClass.CONFIGURE,
        lambda stack: stack.enabled is False,
        lambda mac: f"RDMA is disabled on {mac}: start {mac} in Recovery, run `rdma_ctl enable` in Terminal, and restart",
    ),
    StackRule(
        Reason.NO_DEVICES,
        FaultClass.REPLAN,
        lambda stack: stack.has_devices is False,
        lambda mac: f"`ibv_devices` lists no device on {mac}: RDMA needs a Mac with Thunderbolt 5",
    ),
)
PORT_RULES: Final = (
    PortRule(
        Reason.DEVICE_MISSING,
        FaultClass.REPLAN,
        lambda port: port.device is None or port.state is None,
        lambda mac, port: (
            f"{mac} does not list {port.device or 'an RDMA device for the port'}: replug the cable, then run "
            f"`ibv_devices` on {mac}; if it does not list the device either, reboot {mac}"
        ),
    ),
    PortRule(Reason.BRIDGE_MEMBER, FaultClass.CONFIGURE, lambda port: port.bridge is not None, _bridge),
    PortRule(Reason.PORT_DOWN, FaultClass.REPLAN, lambda port: port.state is not RDMADeviceState.ACTIVE, _down),
    PortRule(Reason.NO_IPV4_ADDRESS, FaultClass.CONFIGURE, lambda port: not port.mapped, _no_address),
)

FAULT_CLASS: Final = {
    **{rule.reason: rule.fault_class for rule in (*STACK_RULES, *PORT_RULES)},
    Reason.COMMAND_FAILED: FaultClass.RETRY,
}
"""The fault class of an RDMA fault that stops a rank."""


def stack_fault(stack: Stack) -> Reason | None:
    """Why RDMA works on no port of the Mac; None if the stack has no fault."""
    return next((rule.reason for rule in STACK_RULES if stack.reported == rule.reason or rule.applies(stack)), None)


def port_fault(port: Port) -> Reason | None:
    """Why RDMA does not work on a port of a Mac whose stack works; None when it does."""
    return next((rule.reason for rule in PORT_RULES if rule.applies(port)), None)


def first_fault(ends: Iterable[tuple[Stack, Port]]) -> tuple[Reason, int] | None:
    """The fault of several ports that comes first in the tables, and the index of its port; None when all of them work."""
    faults = ((stack_fault(stack) or port_fault(port), index) for index, (stack, port) in enumerate(ends))
    found = [(reason, index) for reason, index in faults if reason is not None]
    return min(found, key=lambda fault: _ORDER.index(fault[0]), default=None)


_ORDER: Final = [rule.reason for rule in (*STACK_RULES, *PORT_RULES)]
_STACK_WORDS: Final = {rule.reason: rule.words for rule in STACK_RULES}
_PORT_WORDS: Final = {rule.reason: rule.words for rule in PORT_RULES}


def explain(reason: Reason, mac: str, port: Port | None = None, evidence: str = "") -> str:
    """The fault in words, and what to do. ``mac`` names the Mac; ``evidence`` is the output of a command."""
    of_stack = _STACK_WORDS.get(reason)
    text = of_stack(mac) if of_stack else _PORT_WORDS[reason](mac, port or Port(None, None, None))
    return f"{evidence}; {text}" if evidence else text
