"""What each command shows of a fleet, as text or as a drawing. Pure.

status    models, Macs and cables in three tables
cables    the cables that groups need, and the cables that the Macs see
topology  Macs, ranks and the cables between them
svg       the topology as a drawing
why       shows the path from a ModelDeployment to the first cause of its state
top       current usage of Macs and groups
events    events in order of time
logs      the logs of all ranks, merged by time
"""
