"""A Kubernetes control plane on one machine. It imports nothing from the rest of the package.

assets      the programs: found, or built once from pinned Go modules
setup       certificates, kubeconfigs and command lines of one control plane
components  command lines of etcd, API server, controller manager and scheduler; objects that joining needs
pki         certificate authorities, certificates, kubeconfigs
pki_files   where certificates and keys are
approver    approves certificates of kubelets
approval    which certificates are approved, and why; pure
tokens      bootstrap tokens, and the Node that one is bound to; pure
"""
