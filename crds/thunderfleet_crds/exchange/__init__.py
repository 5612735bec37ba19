"""What programs exchange beside the kinds.

plan     the plan of one group, from the operator to its runners
mounts   where a runner pod finds it, the keys and the model
group    the state that a running group reports to the operator
routing  what the operator and the routers exchange: keys, routes, demand
nodes    what a Node shows about its kubelet
"""
