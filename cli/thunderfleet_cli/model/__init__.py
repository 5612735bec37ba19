"""``thunderfleet model``: models that Macs keep on their disks.

arguments  the command line
command    pull, list and remove
patience   when pull stops waiting; pure
view       tables and objects of these commands; pure
"""
