"""Which Macs reach which: hops between Macs by transport, and who can be rank 0.

hops          from which Mac which other is reached, over which cable or address
coordinators  which Macs can be rank 0, and where the other ranks dial them
"""
