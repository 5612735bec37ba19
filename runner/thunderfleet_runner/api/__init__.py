"""The group's HTTP API, on rank 0. The other ranks' gateways serve probes and metrics only.

http      the HTTP server
openai    OpenAI's format; pure
upkeep    what the group generates for itself
intake    request bodies through the intake process
service   requests on their way to rank 0 and back
passages  what a model must continue; pure
errors    error bodies; pure
"""
