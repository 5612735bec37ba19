"""Connections between the pods of a group.

=======  =====================================================================
control  the control port: join, state, drain
peers    messages between supervisors
relay    relays of the ring for links over which MLX cannot connect directly
jaccl    what JACCL needs of a plan, and its exchange through the supervisors
ports    the next free port of a rank's block
=======  =====================================================================
"""
