"""Figures of the agent and the kubelet of a Mac.

discovery  how soon a pulled cable is known, and what agents cost
hour       one agent's rounds of an hour, without the pauses
kubelet    pods of one kubelet: start, many at once, cost, logs, without a cluster
macpods    one kubelet of the cluster: what it costs with many pods, and port-forward
measure    what probes find and cost
"""
