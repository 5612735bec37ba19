"""The fleet as it changes: what the API server and agents send, as entities of the page.

fleet  the Macs, cables and models of the page, kept current object by object
watch  keeps the fleet current from what the API server sends
leases  reads by what the control plane, kubelets and agents show that they work
feed  sends changes to browsers, bounded
rates  live rates of cables, from two readings of an agent's counters
meter  asks agents for these counters while somebody looks
"""
