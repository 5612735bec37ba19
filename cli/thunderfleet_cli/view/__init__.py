"""Commands that show a fleet and explain it, with a kubeconfig alone. They read; they change nothing.

arguments  the command lines
command    the steps of the commands
picture    reads the objects, and names the rights that are missing
control_plane  whether API server and etcd answer
status     models, Macs and cables in three tables
cables     the cables that groups need beside those that the Macs see
topology   Macs, ranks and the cables between them
svg        the topology as a drawing
ui         serves the live page on this machine
why        shows the way from a ModelDeployment to the first cause of its state
plan       where the operator would place a ModelDeployment
top        what Macs and groups use now
events     what happened, in order
logs       the logs of all ranks by time
page       tables and text for a terminal
"""
