"""From what was observed to one decision. Pure: equal inputs give equal decisions.

deployment            one round for a ModelDeployment: all its groups at once
group                 one group: keep, drain, place, back off or stop restarting; its cables
placing               a placement for one group: request, resources in use, ports
scaling               how many groups a ModelDeployment has
routing               the data that routers read, and the addresses of routers
manifests             the objects that a placement consists of
status                status and Events of a ModelDeployment
weights               models that are fetched: which Macs, which pods
mac_usage             one round for a Mac: its part of the NodeProfile's status
link                  one round for a cable
link_status           conditions and columns of its ThunderboltLink
serving_certificates  one round for the certificate requests of a Node
"""
