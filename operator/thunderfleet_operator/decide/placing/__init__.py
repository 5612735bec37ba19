"""A new or better placement of a group.

port_aware_placement  a placement for one group, with its ports
request               the request to the planner for a spec
model                 whether any Mac has the model
account               the running account of memory, ports and cables in use
ports                 the allocation of ports
failback              whether a group goes back to a better placement
"""
