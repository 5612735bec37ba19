"""Installs a control plane on this Mac as LaunchDaemons, joins Macs to it, and removes both.

init          `thunderfleet init`: its steps, each of which changes only what is not yet right
join          `thunderfleet join`: makes this Mac a Node of a control plane on another Mac
reset         `thunderfleet reset`: removes what init and join installed
sharing/      `thunderfleet join --control-plane` and `token create`: several Macs with a control plane
peers/        the members of etcd
steps/        steps that several of these commands have in common
upgrade       `thunderfleet upgrade`: replaces the installed version by this one, or rolls back
backup/       `thunderfleet backup` and `restore`: the control plane in one file
mac/          a Mac: facts and preflight, files, LaunchDaemons
machine       this Mac and the shipped files, for all steps
joinline      the text that `thunderfleet join` takes; pure
balance       the daemon that forwards connections of this Mac to an API server that works
approve       the daemon that approves certificates of kubelets until the operator takes over
errors        the error that ends an installation
"""
