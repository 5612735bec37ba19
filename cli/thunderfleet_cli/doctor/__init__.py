"""``thunderfleet doctor``: what is wrong with this Mac, the other Macs and the cables, and how to repair it.

arguments   the command line
command     the steps: ask, check, repair, show
host        runs commands of macOS, and repairs
limit       sets the limit of GPU memory
installed   what is installed on this Mac: the Python of its kubelet, the balancer, a kubeconfig for root
page        the result as text and as JSON; pure
mac         all checks of this Mac, and the commands whose output they need; pure
power       sleep, restart after a loss of power, heat; pure
security    application firewall, FileVault, Local Network privacy; pure
apiservers  the balancer, and the API servers that it knows; pure
system      macOS, RDMA, disk, clock, GPU memory; pure
network     Ethernet, Thunderbolt Bridge; pure
cabletests  which agents test which cables, and what they answered; pure
selftest    the checks of each cable, from a test of this moment and from what the agents have measured; pure
cluster     Nodes, NodeProfiles and ThunderboltLinks; pure
objects     reads them, and has agents test cables
check       what a check finds; pure
"""
