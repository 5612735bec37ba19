"""``thunderfleet doctor``: problems of this Mac, the other Macs and the cables, and their repair.

arguments   the command line
command     the steps: ask, check, repair, show
host        runs commands of macOS, and repairs
limit       sets the limit of GPU memory
installed   the installation on this Mac: the Python of its kubelet, the balancer, a kubeconfig for root
page        the result as text and as JSON; pure
checks      what is checked on this Mac, in the cluster and on cables; pure
objects     reads Nodes, NodeProfiles and ThunderboltLinks, and has agents test cables
"""
