"""The status of a ModelDeployment, and the Events about what changed in it. The same facts give the same status.

deployment  the whole status
conditions  its conditions
progress    its conditions Reconciling and Stalled
verdict     status, reason and message of a condition
verification  whether groups have passed the checks of spec.verify
group       one entry of status.groups
speed       the predicted speed of a group
unplaced    why groups cannot be placed
outcome     one group after a round: what was decided and what came of it
events      what is worth an Event
"""
