"""A Kubernetes control plane on one machine.

install/    on a Mac, as LaunchDaemons: init, join, reset
balancer/   forwards connections of a Mac to an API server that works
daemons/    the LaunchDaemons of such a Mac; pure
assets      the programs: found, or built once from pinned Go modules
setup       certificates, kubeconfigs and command lines of one control plane
components  command lines of etcd, API server, controller manager and scheduler; objects that joining needs
pki         certificate authorities, certificates, kubeconfigs
pki_files   where certificates and keys are
approver    approves certificates of kubelets that join, and serving certificates until the operator is installed
approval    decides which requests of bootstrap tokens are approved; pure
go/         the Go modules that the programs are built from
tokens      bootstrap tokens, and the Node that one is bound to; pure
"""
