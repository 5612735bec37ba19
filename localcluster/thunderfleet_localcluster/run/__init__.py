"""``thunderfleet run MODEL``: serve a model in any cluster, and chat with it.

command     the steps: apply, wait, chat
connection  which cluster, and how its endpoints are reached
manifest    the ModelDeployment to apply; pure
follow      what a ModelDeployment waits for, in one sentence; pure
chat        a conversation with the endpoint
"""
