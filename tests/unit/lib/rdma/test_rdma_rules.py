"""The table of RDMA rules: every rule, their order, the class of every fault, and its message."""

from __future__ import annotations

import pytest
from thunderfleet_crds.reasons import FAILURE, Reason
from thunderfleet_crds.vocabulary import ConditionType, FaultClass, RDMADeviceState
from thunderfleet_lib.rdma import rules
from thunderfleet_lib.rdma.rules import Port, Stack

GOOD = Port("rdma_en2", "en2", RDMADeviceState.ACTIVE, mapped=True)
DOWN = Port("rdma_en2", "en2", RDMADeviceState.DOWN, mapped=True)
BRIDGED = Port("rdma_en3", "en3", RDMADeviceState.ACTIVE, bridge="bridge0", mapped=True)


@pytest.mark.parametrize(
    ("stack", "reason"),
    [
        (Stack(), None),
        (Stack(enabled=True, has_devices=True), None),
        (Stack(hung=True), Reason.STACK_HUNG),
        (Stack(supported=False), Reason.RDMA_UNSUPPORTED),
        (Stack(enabled=False), Reason.RDMA_DISABLED),
        (Stack(has_devices=False), Reason.NO_DEVICES),
        # A cause comes before its effects.
        (Stack(supported=False, hung=True, enabled=False, has_devices=False), Reason.STACK_HUNG),
        (Stack(supported=False, enabled=False, has_devices=False), Reason.RDMA_UNSUPPORTED),
        (Stack(enabled=False, has_devices=False), Reason.RDMA_DISABLED),
    ],
)
def test_faults_of_the_stack(stack: Stack, reason: Reason | None) -> None:
    assert rules.stack_fault(stack) is reason
    found = rules.first_fault([(stack, GOOD)])
    assert found == (None if reason is None else (reason, 0))


@pytest.mark.parametrize(
    ("port", "reason"),
    [
        (GOOD, None),
        (Port(None, "en2", RDMADeviceState.ACTIVE, mapped=True), Reason.DEVICE_MISSING),
        (Port("rdma_en2", "en2", None, mapped=True), Reason.DEVICE_MISSING),
        (BRIDGED, Reason.BRIDGE_MEMBER),
        *((Port("rdma_en2", "en2", state, mapped=True), Reason.PORT_DOWN) for state in RDMADeviceState if state != "Active"),
        (Port("rdma_en2", "en2", RDMADeviceState.ACTIVE), Reason.NO_IPV4_ADDRESS),
        (Port(None, "en2", None, bridge="bridge0"), Reason.DEVICE_MISSING),
        (Port("rdma_en2", "en2", RDMADeviceState.DOWN, bridge="bridge0"), Reason.BRIDGE_MEMBER),
        (Port("rdma_en2", "en2", RDMADeviceState.DOWN), Reason.PORT_DOWN),
    ],
)
def test_faults_of_a_port(port: Port, reason: Reason | None) -> None:
    assert rules.port_fault(port) is reason


def test_the_first_cause_of_several_ports_is_named_with_its_port() -> None:
    works, off = Stack(), Stack(enabled=False)
    assert rules.first_fault([]) is None
    assert rules.first_fault([(works, GOOD), (works, GOOD)]) is None
    assert rules.first_fault([(works, DOWN), (off, GOOD)]) == (Reason.RDMA_DISABLED, 1)
    assert rules.first_fault([(works, DOWN), (works, BRIDGED)]) == (Reason.BRIDGE_MEMBER, 1)
    assert rules.first_fault([(works, GOOD), (works, DOWN), (works, DOWN)]) == (Reason.PORT_DOWN, 1)
    assert rules.first_fault([(off, DOWN), (off, DOWN)]) == (Reason.RDMA_DISABLED, 0)


@pytest.mark.parametrize("reason", [rule.reason for rule in (*rules.STACK_RULES, *rules.PORT_RULES)])
def test_every_rule_has_a_class_and_a_message(reason: Reason) -> None:
    assert reason in rules.FAULT_CLASS
    assert "studio-1" in rules.explain(reason, "studio-1", DOWN)
    assert reason.remedy


@pytest.mark.parametrize(
    ("reason", "fault"),
    [
        (Reason.STACK_HUNG, FaultClass.REBOOT),
        (Reason.RDMA_UNSUPPORTED, FaultClass.CONFIGURE),
        (Reason.RDMA_DISABLED, FaultClass.CONFIGURE),
        (Reason.NO_DEVICES, FaultClass.REPLAN),
        (Reason.DEVICE_MISSING, FaultClass.REPLAN),
        (Reason.BRIDGE_MEMBER, FaultClass.CONFIGURE),
        (Reason.PORT_DOWN, FaultClass.REPLAN),
        (Reason.NO_IPV4_ADDRESS, FaultClass.CONFIGURE),
        (Reason.COMMAND_FAILED, FaultClass.RETRY),
    ],
)
def test_the_class_of_every_fault(reason: Reason, fault: FaultClass) -> None:
    assert rules.FAULT_CLASS[reason] is fault
    assert FAILURE in reason.where
    assert {ConditionType.RDMA_READY, ConditionType.RDMA_USABLE} & set(reason.where)


@pytest.mark.parametrize(
    ("reason", "port", "words"),
    [
        (Reason.STACK_HUNG, None, ("RDMA stack of studio-1", "reboot studio-1 (`sudo shutdown -r now`)")),
        (Reason.RDMA_UNSUPPORTED, None, ("macOS 26.3 or newer", "update studio-1")),
        (Reason.RDMA_DISABLED, None, ("disabled on studio-1", "start studio-1 in Recovery, run `rdma_ctl enable`")),
        (Reason.NO_DEVICES, None, ("`ibv_devices` lists no device on studio-1", "Thunderbolt 5")),
        (Reason.DEVICE_MISSING, GOOD, ("studio-1 does not list rdma_en2:",)),
        (Reason.DEVICE_MISSING, None, ("studio-1 does not list an RDMA device for the port:",)),
        (
            Reason.BRIDGE_MEMBER,
            BRIDGED,
            ("en3 of studio-1 is a member of bridge0", "doctor --fix` on studio-1"),
        ),
        (Reason.PORT_DOWN, DOWN, ("rdma_en2 of studio-1 is Down, not Active", "replug the cable to reset the port")),
        (Reason.PORT_DOWN, Port("rdma_en2", "en2", None), ("rdma_en2 of studio-1 is not listed, not Active",)),
        (
            Reason.NO_IPV4_ADDRESS,
            GOOD,
            ("no GID of an IPv4 address", "255.255.255.252 ''` on studio-1"),
        ),
        (
            Reason.NO_IPV4_ADDRESS,
            Port("rdma_en2", "en2", RDMADeviceState.ACTIVE, address="10.1.1.1"),
            ("though en2 has 10.1.1.1", "run `sudo ifconfig en2 inet 10.1.1.1` on studio-1"),
        ),
    ],
)
def test_every_fault_says_what_to_do(reason: Reason, port: Port | None, words: tuple[str, ...]) -> None:
    text = rules.explain(reason, "studio-1", port)
    assert all(word in text for word in words), text
    assert rules.explain(reason, "studio-1", port, "`x` failed") == f"`x` failed; {text}"


@pytest.mark.parametrize(
    ("device", "interface"), [("rdma_en2", "en2"), ("rdma_", None), ("en2", None), ("", None), ("mlx5_0", None)]
)
def test_a_device_is_named_after_its_interface(device: str, interface: str | None) -> None:
    assert rules.interface_of(device) == interface


@pytest.mark.parametrize("macos", ["26.2", "26.2.1", "26", "15.6", "9.9.9"])
def test_versions_of_macos_whose_frames_have_another_size_are_too_old(macos: str) -> None:
    assert rules.too_old(macos)


@pytest.mark.parametrize("macos", ["26.3", "26.3.1", "26.10", "27", "27.0", "", None, "26.x", "Darwin"])
def test_newer_versions_of_macos_and_unknown_ones_are_not_too_old(macos: str | None) -> None:
    assert not rules.too_old(macos)
