"""Generation that the group starts itself, through the same path as clients' requests.

idle          runs such work only while no client's request is running
rechecks      when the longest passage is checked again
continuation  lets the group continue passages
benchmark     measures the group's rates while it is idle
canary        makes the idle group work, to notice a lost peer or a wrong answer
"""
