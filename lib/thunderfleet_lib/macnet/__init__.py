"""Network settings of a Mac: each Thunderbolt port gets a network service of its own and leaves the Thunderbolt Bridge.

In a bridge a port has no IPv4 address, without which RDMA has no GID. macOS keeps network services across restarts and
replugged cables; the members of a bridge can return with a restart, so the kubelet keeps looking.

parse    the output of ``networksetup`` and ``ifconfig``; pure
values   ports, services and bridges, and the record of what was changed; pure
subnets  the addresses of both ends of a cable; pure
switch   whether ports may leave a bridge, whether that has worked, and how it is undone; pure
decide   the next commands; pure
observe  reads the settings of this Mac
record   the file with what was changed
keeper   carries out what is decided, and undoes it
advice   what messages recommend; pure
"""
