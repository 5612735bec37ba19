"""A Kubernetes control plane on one machine, of use without recorded Macs. It imports nothing from the rest of the package.

assets      the programs: found, or built once from pinned Go modules
components  command lines of etcd, API server, controller manager and scheduler, and the objects that joining needs
pki         certificate authorities, certificates and kubeconfigs
approver    approves the serving certificates of kubelets
"""
