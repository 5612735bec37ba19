"""Installs a control plane on this Mac as LaunchDaemons, joins Macs to it, and removes both.

init          `thunderfleet init`: the steps, each of which leaves what is already right
join          `thunderfleet join`: this Mac becomes a Node of a control plane on another
reset         `thunderfleet reset`: removes what the other two installed
sharing/      `thunderfleet join --control-plane` and `token create`: several Macs with a control plane
peers/        the members of etcd
access        the balancer of this Mac, and who answers at an address
upgrade       `thunderfleet upgrade`: this version takes the place of the one that is installed, or leaves it there
backup/       `thunderfleet backup` and `restore`: the control plane in one file
mac/          a Mac: facts and preflight, files, LaunchDaemons
machine       this Mac and what is shipped, for all steps
kubelet       joins the kubelet of this Mac, and its daemon
chart         the chart, and its values that follow the number of control planes
cluster       requests to the API server: objects, Nodes, tokens
certificates  certificates, keys and kubeconfigs of the control plane
programs      where the programs that launchd runs are, and who can change them
joinline      the text that `thunderfleet join` takes; pure
balance       the daemon that leads everything on this Mac to an API server that works
approve       the daemon that approves certificates of kubelets until the operator does
errors        what ends an installation
"""
