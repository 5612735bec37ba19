"""What the operator does for routers. The formats are those of ``thunderfleet_crds.routing``.

publisher  keeps the Secret of routers and the document of each ModelDeployment up to date
api_keys   reads the API keys that ModelDeployments name
demand     receives the reports of routers
"""
