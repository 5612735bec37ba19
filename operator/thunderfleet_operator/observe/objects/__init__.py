"""Kubernetes objects as values, each by itself.

metadata   metadata of the children of a ModelDeployment
nodes      a Node as a value
profiles   NodeProfiles, which share equal models
pods       a pod as a value
fetchpods  pods that read from the hub
routers    routers, and the pods that are routers
plans      placements that were made, and the groups that they belong to
requests   certificate requests of kubelets
proofs     which objects the operator has made
"""
