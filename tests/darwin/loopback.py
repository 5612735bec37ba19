"""Addresses of the loopback interface that unit tests use. macOS has only 127.0.0.1 until each of the others is made an alias.

``python -m tests.darwin.loopback`` prints the commands for a Mac. A test that needs another address adds it here.
"""

ALIASES = [
    *(f"127.0.0.{number}" for number in range(2, 10)),
    # Agents that measure each other.
    *(f"127.0.7.{number}" for number in range(1, 32)),
    # Macs that copy models: 127.9.MAC.CABLE.
    *(f"127.9.{mac}.{cable}" for mac in range(1, 6) for cable in (1, 2)),
    "127.9.9.7",
    "127.9.9.8",
    "127.9.9.9",
    # Both ends of the three cables of Macs with a recorded JACCL.
    *(f"127.10.1.{end}" for end in (1, 2, 5, 6, 9, 10, 13, 14)),
]


def commands() -> str:
    """Commands for a Mac; they need root."""
    return "".join(f"ifconfig lo0 alias {address} up\n" for address in ALIASES)


if __name__ == "__main__":
    print(commands(), end="")
