"""Figures of large fleets: the operator, the commands, the page, sizes.

sizes      chart, objects and CRDs, against the limits of Kubernetes
scrape     what a scrape of the operator costs, without a cluster
commands   status, topology and why of 1,000 Macs, before a real API server
page       the live page of 1,000 Macs, without a cluster
scale      one operator of 1,000 and of 5,000 simulated Macs
written    what their agents and kubelets have written, put into etcd
fleetload  what their kubelets and ranks do meanwhile
memory     what the operator keeps of a fleet, in memory
"""
