"""The group's HTTP API, on rank 0. The other ranks' gateways serve probes and metrics only.

gateway    the HTTP server
bodies     reads request bodies, bounded
intake     request bodies through the intake process
stream     a response as server-sent events
requests   OpenAI request bodies; pure, runs in the intake process
responses  OpenAI response bodies; pure
errors     OpenAI error bodies; pure
admission  lets requests wait until it is their turn
turns      which requests run, by number and tokens, and who is next; pure
metrics    the gateway's metrics
service    requests on their way to rank 0 and back
passages   what a model must continue; pure
idle       what the group does for itself waits for clients
continuation  asks the group to continue passages
benchmark  measures the group's rates while it is idle
canary     makes the idle group work, to notice a lost peer or a wrong answer
rechecks   when the longest passage is asked again
"""
