"""Checks of this Mac, of the fleet and of the cables. Pure.

check       the result of a check
mac         all checks of this Mac, and the commands whose output they need
system      macOS, RDMA, disk, clock, GPU memory
network     Ethernet, Thunderbolt Bridge
power       sleep, restart after a loss of power, heat
security    application firewall, FileVault, Local Network privacy
apiservers  the balancer, and the API servers in its list
cluster     Nodes, NodeProfiles and ThunderboltLinks
cabletests  which agents test which cables, and their answers
selftest    the checks of each cable, from a new test and from the agents' measurements
"""
