"""What ``ifconfig`` says of bridges."""

import pytest
from thunderfleet_lib.host.parsing import ParseError
from thunderfleet_lib.rdma.parse import parse_bridges, parse_devices

TWO_BRIDGES = """\
lo0: flags=8049<UP,LOOPBACK,RUNNING,MULTICAST> mtu 16384
bridge0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tConfiguration:
\t\tid 0:0:0:0:0:0 priority 0 hellotime 0 fwddelay 0
\tmember: en2 flags=3<LEARNING,DISCOVER>
\tmember: en3 flags=3<LEARNING,DISCOVER>
en2: flags=8963<UP,BROADCAST,SMART,RUNNING,PROMISC,SIMPLEX,MULTICAST> mtu 1500
\tmember: en9 is a line of no bridge
bridge1: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tmember: en4 flags=3<LEARNING,DISCOVER>
"""


def test_members_of_all_bridges_with_their_bridge() -> None:
    assert parse_bridges(TWO_BRIDGES) == {"en2": "bridge0", "en3": "bridge0", "en4": "bridge1"}
    assert parse_bridges("") == {}


def test_names_of_devices_have_64_characters_at_most() -> None:
    def table(length: int) -> str:
        head = "    device          \t   node GUID\n    ------          \t----------------\n"
        return f"{head}    {'r' * length}\tc03b3b8fe481ac05\n"

    assert parse_devices(table(64)) == ("r" * 64,)
    with pytest.raises(ParseError, match="ends with a line that is not a device: rrr"):
        parse_devices(table(65))
