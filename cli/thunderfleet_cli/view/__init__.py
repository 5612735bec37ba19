"""Commands that show and explain a fleet. They need only a kubeconfig, and change nothing.

arguments  the command lines
command    the steps of the commands
picture    reads the objects, and names the rights that are missing
control_plane  whether the API server and etcd answer
status     models, Macs and cables in three tables
cables     the cables that groups need, and the cables that the Macs see
topology   Macs, ranks and the cables between them
svg        the topology as a drawing
ui         serves the live page on this machine
why        shows the path from a ModelDeployment to the first cause of its state
plan       where the operator would place a ModelDeployment
top        current usage of Macs and groups
events     events in order of time
logs       the logs of all ranks, merged by time
page       tables and text for a terminal
"""
