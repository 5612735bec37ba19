"""``thunderfleet doctor``: problems of this Mac, the other Macs and the cables, and their repair.

arguments   the command line
command     the steps: ask, check, repair, show
host        runs commands of macOS, and repairs
limit       sets the limit of GPU memory
installed   the installation on this Mac: the Python of its kubelet, the balancer, a kubeconfig for root
page        the result as text and as JSON; pure
mac         all checks of this Mac, and the commands whose output they need; pure
power       sleep, restart after a loss of power, heat; pure
security    application firewall, FileVault, Local Network privacy; pure
apiservers  the balancer, and the API servers in its list; pure
system      macOS, RDMA, disk, clock, GPU memory; pure
network     Ethernet, Thunderbolt Bridge; pure
cabletests  which agents test which cables, and their answers; pure
selftest    the checks of each cable, from a new test and from the agents' measurements; pure
cluster     Nodes, NodeProfiles and ThunderboltLinks; pure
objects     reads them, and has agents test cables
check       the result of a check; pure
"""
