"""From values to decisions. Pure: the same input gives the same decision.

lifecycle             keep, drain, place, back off or give up, for one group
port_aware_placement  where a group goes, with ports
ports                 the allocation of ports
manifests             the objects that a placement consists of
model                 whether the model is on any Mac's disk
status                status and conditions of a ModelDeployment
link                  status and conditions of a ThunderboltLink
mac_usage             the operator's part of a NodeProfile's status
"""
