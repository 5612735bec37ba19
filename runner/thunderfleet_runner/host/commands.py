"""The commands of this Mac: one host for the whole program, which keeps track of what hangs."""

from typing import Final

from thunderfleet_lib.host.hostcmd import BlockingHost

HOST: Final = BlockingHost()
