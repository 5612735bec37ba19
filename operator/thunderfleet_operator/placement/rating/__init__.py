"""How good a placement is.

score        the order of placements
preferences  the order of transports and splits
buckets      buckets of measured rates
speed        predicted tokens per second
chips        what chips can do, until a Mac has measured itself
"""
