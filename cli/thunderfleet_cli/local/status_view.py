"""The text of ``thunderfleet local status``."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from thunderfleet_localcluster.client.cluster import OWN_MODELS

WIDTH = 240
"""Columns of output that is not a terminal's."""

Json = Mapping[str, Any]


def show(supervisor: int, status: Json) -> None:
    """Print the answer of the supervisor (process ID ``supervisor``) to ``status``."""
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = WIDTH
    for key, value in _facts(supervisor, status["state"]):
        console.print(f"[bold]{key:<11}[/bold] {escape(value)}")
    if status["components"]:
        console.print(_table(("COMPONENT", "STATE", "LOG"), [_component(item) for item in status["components"]]))
    for item in status["components"]:
        if item["tail"]:
            console.print(escape(f"{item['name']} ended ({item['end']}); the last lines of {item['log']}:\n{item['tail']}"))
    facts = {item["name"]: item for item in status["state"]["machines"]}
    columns = ("MACHINE", "MODEL", "ADDRESS", "POWER", "KUBELET", "NODE", "CABLES")
    daemons = bool(status["state"].get("controlPlaneMac"))
    console.print(_table(columns, [_machine(item, facts[item["name"]], daemons) for item in status["machines"]]))


def _facts(supervisor: int, state: Json) -> Sequence[tuple[str, str]]:
    mac = state.get("controlPlaneMac")
    daemons = [("daemons", f"control plane on {mac}, kubelets on all Macs; `launchctl` there shows them")] if mac else []
    return (
        ("cluster", str(state["name"])),
        ("supervisor", f"process {supervisor}"),
        ("network", f"{state['network']}" + (f" ({state['reason']})" if state["reason"] else "")),
        ("kubeconfig", str(state["kubeconfig"])),
        *daemons,
        ("API server", f"{state['server']} (from machines: {state['innerServer']})"),
        ("HTTP proxy", f"export http_proxy={state['proxy']}  # then, for example: curl http://ADDRESS:PORT/"),
        ("models", f"{state['folder']}/machines/MAC/{OWN_MODELS}" if mac else str(state["models"])),
        ("logs", str(state["logs"])),
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _component(item: Json) -> Sequence[str]:
    return item["name"], "running" if item["pid"] else f"ended ({item['end']})", item["log"]


def _machine(item: Json, fact: Json, daemons: bool) -> Sequence[str]:
    cables = ", ".join(f"{cable['port']}→{cable['peer']}:{cable['peerPort']}" for cable in fact["cables"])
    kubelet = "running" if item["kubelet"] else f"ended ({item['end']})" if item["end"] else "launchd" if daemons else "none"
    power = "on" if item["on"] else "off"
    return item["name"], fact["model"] or "Linux", fact["address"], power, kubelet, item["node"], cables
