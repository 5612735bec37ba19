"""``thunderfleet run MODEL``: serve a model in any cluster, and chat with it.

arguments   the command line
command     the steps: apply, wait, chat
manifest    the ModelDeployment to apply; pure
chat        a conversation with the endpoint
"""
