"""What ``ifconfig`` says of bridges."""

from thunderfleet_lib.rdma.parse import parse_bridges

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
