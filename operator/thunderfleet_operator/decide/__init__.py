"""From what was observed to one decision. Pure: equal inputs give equal decisions.

deployment            one round for a ModelDeployment: all its groups at once
account               the running account of memory, ports and cables in use
lifecycle             one group: keep, drain, place, back off or give up
trouble               why a group cannot go on
cables                what is known to be wrong with the cables of a group
avoided               cables that corrupted data, which are avoided for a while
failback              whether a group goes back to a better placement
scaling               how many groups a ModelDeployment has
routing               the data that routers read, and the addresses of routers
rollout               which group a changed spec replaces next
port_aware_placement  a placement for one group, with its ports
ports                 the allocation of ports
request               what a spec asks of the planner
model                 whether any Mac has the model
manifests             the objects that a placement consists of
status                status and Events of a ModelDeployment
weights               models that are fetched: which Macs, which pods
mac_usage             one round for a Mac: its part of the NodeProfile's status
link                  one round for a cable
link_status           conditions and columns of its ThunderboltLink
serving_certificates  one round for the certificate requests of a Node
"""
