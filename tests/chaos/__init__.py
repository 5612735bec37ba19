"""The fault suite: faults, chosen by a seed, on local clusters at every stage of a deployment's life.

plan     the fleets, deployments and faults of a seed; pure
fleet    the cluster, with disks that can fill up and clocks that can be set
run      carries a plan out, and checks the cluster after each fault
stages   brings a deployment to a stage of its life
faults   injects faults and undoes them
clients  send requests throughout a fault, and judge the responses
culprit  whether what a user sees names what was hit; pure
person   what a user sees of a fault: commands, conditions and alerts
looks    reads the cluster's state during faults
checks   what must hold after a fault; pure
judge    what clients may get, and what may be written; pure
report   totals, and the file that keeps results; pure but for that
"""
