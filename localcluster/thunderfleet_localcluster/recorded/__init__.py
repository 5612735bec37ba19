"""Recorded Macs: a folder of small executables that print what that Mac would print."""

from pathlib import Path

from thunderfleet_localcluster.layout import Layout, MachineLayout


def write_machine(layout: Layout, machine: MachineLayout, folder: Path) -> None:
    """Writes the commands of one Mac into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
