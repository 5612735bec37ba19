"""Decisions carried out: writes to the API server and requests to the groups.

executor         server-side apply and deletes
group_client     polls rank 0 of each group, and asks it to drain
drains           groups that are draining, and since when
mac_controller   one round for one Mac
link_controller  one round for one cable
events           Events about what changed
keys             the TLS keys of a group, derived from the operator's key
"""
