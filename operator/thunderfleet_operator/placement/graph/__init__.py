"""Which Macs reach which: hops between Macs by transport, and which Macs can be rank 0.

hops          which Mac reaches which other, over which cable or address
coordinators  which Macs can be rank 0, and where the other ranks dial them
"""
