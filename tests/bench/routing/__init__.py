"""Figures of routers.

routing        what the router costs and what its balancing is worth
waking         wake from zero, and a router before real ranks
connections    memory of a router with a thousand clients that do nothing
simulated      processes with simulated steps, and a router before them
conversations  conversations from a seed, and policies of balancing, in simulated time; pure
metering       what the metrics of a request cost, without a cluster
"""
