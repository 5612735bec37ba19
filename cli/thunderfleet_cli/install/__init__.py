"""``thunderfleet init``, ``join``, ``reset`` and others: a control plane and nodes on Macs.

arguments  the command lines
command    the functions of the commands
"""
