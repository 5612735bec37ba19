"""Derives what to publish from what was observed. Every module here is pure: no commands, no clock, no Kubernetes.

profile            the status and labels of this Mac's NodeProfile
hardware           chip, cores, memory and how much of it the GPU may use
network            interfaces, their kinds and addresses; which interface a Thunderbolt port is
thunderbolt        Thunderbolt ports and RDMA devices
failures           what failed while reading facts, and what to do about it
inventory          condition InventoryComplete: commands that failed or contradict each other
rdma_ready         condition RDMAReady: this Mac's side of RDMA
bridges            condition BridgeFree: Thunderbolt ports that are members of a bridge
clock              condition ClockSynchronized: whether this Mac's clock matches the API server's
condition          the value of one condition
links              this Mac's ends of ThunderboltLinks, and which Mac is at the other end
flap_damper        holds the last connected state of a port whose cable flaps
previous_profile   models and runtime from the profile that an earlier agent published
"""
