"""Installs a control plane on this Mac as LaunchDaemons, joins Macs to it, and removes both.

init          `thunderfleet init`: its steps, each of which changes only what is not yet right
join          `thunderfleet join`: makes this Mac a Node of a control plane on another Mac
reset         `thunderfleet reset`: removes what init and join installed
sharing/      `thunderfleet join --control-plane` and `token create`: several Macs with a control plane
peers/        the members of etcd
access        the balancer of this Mac, and the check of an API server's CA
upgrade       `thunderfleet upgrade`: replaces the installed version by this one, or rolls back
backup/       `thunderfleet backup` and `restore`: the control plane in one file
mac/          a Mac: facts and preflight, files, LaunchDaemons
machine       this Mac and the shipped files, for all steps
kubelet       joins the kubelet of this Mac, and its daemon
chart         the chart, and its values that depend on the number of control planes
cluster       requests to the API server: objects, Nodes, tokens
certificates  certificates, keys and kubeconfigs of the control plane
programs      location and protection of the programs that launchd runs
joinline      the text that `thunderfleet join` takes; pure
balance       the daemon that forwards connections of this Mac to an API server that works
approve       the daemon that approves certificates of kubelets until the operator takes over
errors        the error that ends an installation
"""
