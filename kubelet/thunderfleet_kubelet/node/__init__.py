"""The Node object of this machine.

=======  ======================================================================
keeper   registers the Node, renews its Lease, writes its status
machine  reads the facts and the load of this machine
=======  ======================================================================
"""
