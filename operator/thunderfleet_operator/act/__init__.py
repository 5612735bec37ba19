"""Carries decisions out.

executor         the decision of one round for a ModelDeployment
batches          requests that depend on no other, a few at a time
refusals         why the API server refuses an object of a group
mac_controller   one round for one Mac
link_controller  one round for one cable
cache_controller  one round for one ModelCache
certificate_controller  one round for the certificate requests of a Node
group_client     polls rank 0 of each group, and asks it to drain
drains           groups that are draining, and since when
routers          what routers get to know, and their reports
writer           creates, server-side apply and deletes
events           Events, which are written after everything else
pacing           how often progress is written
keys             the TLS keys of a group, derived from the operator's key
operator_key     the operator's own keys
"""
