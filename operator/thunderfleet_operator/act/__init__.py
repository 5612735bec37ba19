"""Carries decisions out.

executor         the decision of one round for a ModelDeployment
controllers      one round for a Mac, a cable, a ModelCache, the certificate requests of a Node
batches          requests that depend on no other, a few at a time
refusals         why the API server refuses an object of a group
group_client     polls rank 0 of each group, and lets it drain
drains           groups that are draining, and since when
routers          the data that routers read, and their reports
writer           creates, server-side apply and deletes
events           Events, which are written after everything else
pacing           how often progress is written
keys             the TLS keys of a group, derived from the operator's key
operator_key     the operator's own keys
"""
