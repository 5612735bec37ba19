"""Code that the servers of the models' HTTP API share: the gateway of a runner and the router.

paths      the paths of the API; pure
errors     errors in the formats of OpenAI and Anthropic; pure
bodies     reads request bodies, bounded
refusals   what the HTTP server refuses by itself, as errors of the API
requestid  the id of a request in logs
routed     headers between router and gateways; pure
fairqueue  the order of waiting requests; pure
shares     how much each caller uses of a shared resource; pure
"""
