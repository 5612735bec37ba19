"""The fault suite: faults, chosen by a seed, on a local cluster at every stage of a deployment's life.

plan     the deployments and faults of a seed; pure
run      carries a plan out, and checks the cluster after each fault
stages   brings a deployment to a stage of its life
faults   injects faults and undoes them
clients  send requests throughout a fault, and judge the responses
looks    reads the cluster's state during faults
checks   what must hold after a fault
report   totals of a run
"""
