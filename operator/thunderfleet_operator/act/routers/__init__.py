"""The operator's work for routers. ``thunderfleet_crds.exchange.routing`` defines the formats.

publisher  keeps the Secret of routers and the document of each ModelDeployment up to date
api_keys   reads the API keys that ModelDeployments name
demand     receives the reports of routers
"""
