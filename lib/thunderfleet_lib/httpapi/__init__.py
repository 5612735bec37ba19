"""What the servers of models' APIs share: the gateway of a runner and the router.

errors     errors in the formats of OpenAI and Anthropic; pure
bodies     reads request bodies, bounded
refusals   what the HTTP server refuses by itself, as errors of the API
requestid  the id of a request, by which logs name it
routed     headers between router and gateways; pure
fairqueue  who is next among waiting requests; pure
shares     who holds how much of what all callers share; pure
"""
