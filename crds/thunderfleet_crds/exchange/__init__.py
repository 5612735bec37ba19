"""What programs exchange beside the kinds.

plan     the plan of one group, from the operator to its runners
group    the state that a running group reports to the operator
routing  what the operator and the routers exchange: keys, routes, demand
nodes    what a Node shows about its kubelet
"""
