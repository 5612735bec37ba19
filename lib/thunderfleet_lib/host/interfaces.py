"""Reads what `route` and `ifconfig` of macOS print about a Mac's addresses. Pure."""

import re


def route_interface(text: str) -> str | None:
    """The interface in the output of ``route -n get``; None if it names none."""
    match = re.search(r"^\s*interface: (\S+)\s*$", text, re.MULTILINE)
    return match[1] if match else None


def inet_addresses(text: str) -> tuple[str, ...] | None:
    """The IPv4 addresses in the output of ``ifconfig INTERFACE``, none for a loopback interface; None for other text."""
    flags = re.match(r"\w+: flags=[0-9a-f]+<([^>]*)>", text)
    if flags is None:
        return None
    if "LOOPBACK" in flags[1].split(","):
        return ()
    return tuple(re.findall(r"^\s+inet (\d+\.\d+\.\d+\.\d+)(?: --> \S+)? netmask 0x[0-9a-f]{8}", text, re.MULTILINE))
