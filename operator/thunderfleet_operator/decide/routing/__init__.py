"""The data that routers read, and the addresses of routers for clients.

The values are those of ``thunderfleet_crds.exchange.routing``.

keys       routing keys, the Secret with them, and the credentials of groups
documents  the document of one ModelDeployment: digests of API keys, and its groups
endpoints  the URLs of routers, and the Service that leads to them
refusals   why a ModelDeployment is not woken
"""
