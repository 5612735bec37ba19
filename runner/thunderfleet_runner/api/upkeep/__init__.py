"""What the group generates for itself, through the path that clients use.

idle          such work waits for clients
continuation  asks the group to continue passages
benchmark     measures the group's rates while it is idle
canary        generates a token after a pause, to notice a lost peer
"""
