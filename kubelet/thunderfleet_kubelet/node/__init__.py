"""The Node object of this machine.

controller  registers the Node, renews its Lease, writes its status
status      the content of the Node: labels, capacity, conditions; pure
machine     reads the facts and the load of this machine
commands    runs commands of this machine
memory      the memory for pods: what the GPU of a Mac may use
usage       CPU time and memory that the whole machine uses
shutdown    whether the machine shuts down
awake       keeps a Mac awake while pods run
components  whether scheduler and controller manager of a control plane on this machine answer
ports       keeps Thunderbolt ports out of bridges, each with an address of its own
addresses   the addresses of this machine, followed as they change
facts       facts and load as values, parsers of the machines' output; pure
"""
