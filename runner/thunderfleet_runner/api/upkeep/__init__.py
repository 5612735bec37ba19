"""What the group generates for itself, through the path that clients use.

idle          such work waits for clients
rechecks      when the longest passage is asked again
continuation  asks the group to continue passages
benchmark     measures the group's rates while it is idle
canary        makes the idle group work, to notice a lost peer or a wrong answer
"""
