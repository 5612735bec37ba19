"""Condition InventoryComplete: commands that failed or contradict each other."""

from __future__ import annotations

from collections.abc import Iterator

from thunderfleet_crds.reasons import Reason
from thunderfleet_lib.macnet.parse import IFCONFIG_COMMAND
from thunderfleet_lib.rdma.parse import DEVICES_COMMAND, DEVINFO_COMMAND
from thunderfleet_lib.rdma.rules import interface_of

from thunderfleet_agent.derive.condition import ConditionValue
from thunderfleet_agent.derive.failures import fix, message
from thunderfleet_agent.derive.network import expected_interfaces, port_interfaces
from thunderfleet_agent.derive.thunderbolt import address_without_gid
from thunderfleet_agent.observe.facts import Facts, Source
from thunderfleet_agent.observe.parsers.thunderbolt import NAME as THUNDERBOLT

_IFCONFIG, _DEVICES, _DEVINFO = (" ".join(command) for command in (IFCONFIG_COMMAND, DEVICES_COMMAND, DEVINFO_COMMAND))


def inventory_complete(facts: Facts) -> ConditionValue:
    """Whether every command succeeded, completely and without contradicting another."""
    failed = [(source, facts.failures[source]) for source in Source if source in facts.failures]
    texts = [f"{message(source, failure)}: {fix(source, failure)}" for source, failure in failed]
    problems = []
    if facts.thunderbolt:
        problems += [f"`{THUNDERBOLT}`: {problem}" for problem in facts.thunderbolt.problems]
    problems += _missing_interfaces(facts)
    problems += _rdma_contradictions(facts)
    if problems:
        texts.append(f"{'; '.join(problems)}: run these commands on this Mac and check their output")
    if texts:
        return ConditionValue(False, Reason.COMMAND_FAILED, "; ".join(texts))
    return ConditionValue(True, Reason.COMPLETE, "every command succeeded")


def _missing_interfaces(facts: Facts) -> Iterator[str]:
    """What `ifconfig` should show and does not: output that is truncated between two lines still looks complete."""
    if facts.interfaces is None:
        return
    shown = {interface.name: interface for interface in facts.interfaces}
    last = facts.interfaces[-1].name if facts.interfaces else None
    thunderbolt = set(port_interfaces(facts).values())
    for name, port in sorted(expected_interfaces(facts).items(), key=lambda pair: pair[1]):
        if name not in shown:
            yield f"`{_IFCONFIG}` does not show {name}, which is {port}"
        elif shown[name].active is None and (name in thunderbolt or name == last):
            yield f"`{_IFCONFIG}` does not show the status of {name}, which is {port}"


def _rdma_contradictions(facts: Facts) -> Iterator[str]:
    if facts.rdma_devices is None or facts.rdma_info is None:
        return
    listed, described = set(facts.rdma_devices), {info.name: info for info in facts.rdma_info}
    for name in sorted(listed):
        if name not in described:
            yield f"`{_DEVINFO}` does not describe {name}"
        elif described[name].state is None:
            yield f"`{_DEVINFO}` does not show the state of {name}"
        elif (address := address_without_gid(described[name], facts)) is not None:
            yield f"`{_DEVINFO}` lists no GID for {address} on {name}, but `{_IFCONFIG}` shows it on {interface_of(name)}"
    for name in sorted(set(described) - listed):
        yield f"`{_DEVICES}` does not list {name}, which `{_DEVINFO}` describes"
