"""Whether the machine shuts down: checked when the kubelet gets SIGTERM, which it also gets for an upgrade.

macOS has no command with one answer. The window server keeps states for notify(3) while a user's shutdown or restart is under
way, and ``shutdown``, ``reboot`` and ``halt`` run until launchd has ended everything. systemd reports ``stopping``.
"""

import asyncio

from thunderfleet_lib.host.hostcmd import Failure

from thunderfleet_kubelet.node.commands import Commands

STATES = ("com.apple.system.loginwindow.shutdownInitiated", "com.apple.system.loginwindow.restartinitiated")
PROGRAMS = frozenset({"shutdown", "reboot", "halt"})


async def is_shutting_down(commands: Commands, mac: bool) -> bool:
    """Whether the machine shuts down. False if unknown: keeping pods running costs less than ending them at an upgrade."""
    if not mac:
        # Its exit code is 1 for every state but running.
        found = await commands.run("systemctl", "is-system-running") if commands.exists("systemctl") else None
        return found is not None and (found.text or "").strip() == "stopping"
    answers = await asyncio.gather(*(_state(commands, name) for name in STATES), _has_program(commands))
    return any(answers)


async def _state(commands: Commands, name: str) -> bool:
    """Whether a state of notify(3) is set. ``notifyutil`` prints its name and a number."""
    text = await commands.output("notifyutil", "-g", name) or ""
    words = text.split()
    return len(words) == 2 and words[0] == name and words[1].isdigit() and int(words[1]) != 0


async def _has_program(commands: Commands) -> bool:
    if not commands.exists("ps"):
        return False
    found = await commands.run("ps", "-A", "-o", "comm=")
    if isinstance(found, Failure):
        return False
    return any(line.strip().rpartition("/")[2] in PROGRAMS for line in found.text.splitlines())
