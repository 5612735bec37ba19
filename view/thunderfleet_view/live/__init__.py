"""Live state of the fleet: data of the API server and of agents, as entities of the page.

fleet  the Macs, cables and models of the page, kept current object by object
watch  keeps the fleet current from what the API server sends
leases  reads Leases and pods that show whether the control plane, kubelets and agents work
feed  sends changes to browsers, bounded
rates  live rates of cables, from two readings of an agent's counters
meter  reads these counters from agents while a page is open
"""
