"""Cached objects as immutable values.

observed  what one round knows
reader    reads the index once for a round
index     the values of all cached objects, kept from round to round
linksof   the cables of each Mac
concerns  which keys to work on after an object has changed
fleet     Nodes, NodeProfiles and ThunderboltLinks as the planner's Fleet
weights   the fleet with a model that is fetched
profiles  NodeProfiles, which share equal models
steadiness  which cables have worked long enough since their last interruption
corrections  how far predicted rates are from measured ones
usage     what pods and plans take on each Mac
plans     placements that were made, and the groups that they belong to
pods      a pod as a value
fetchpods  pods that read from the hub
routers   routers, and the pods that are routers
load      how much a ModelDeployment has been asked for
demands   what routers report of their requests
requests  certificate requests of kubelets
nodes     a Node as a value
proofs    which objects the operator has made
objects   metadata of the children of a ModelDeployment
"""
