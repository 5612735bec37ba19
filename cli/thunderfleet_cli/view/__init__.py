"""Commands that show and explain a fleet. They need only a kubeconfig, and change nothing.

arguments  the command lines
command    the steps of the commands
picture    reads the objects, and names the rights that are missing
control_plane  whether the API server and etcd answer
reports/   what each command shows; pure
ui         serves the live page on this machine
plan       where the operator would place a ModelDeployment
page       tables and text for a terminal
"""
