"""The group's HTTP API, on rank 0. The other ranks' gateways serve probes and metrics only.

http       the HTTP server
prepare    a body becomes a checked request in tokens; pure
request    what a client requests, whatever the dialect; pure
answer     what the model has generated, whatever the dialect; pure
examine    requests that count or convert tokens; pure
embed      requests for embeddings; pure
openai     OpenAI's dialects; pure
anthropic  Anthropic's dialect; pure
upkeep     generation that the group starts itself: benchmarks and checks
intake     request bodies through the intake process
intakehealth  whether the intake process works; pure
service    passes requests to rank 0 and tokens back
visits     the number of clients' requests; pure
passages   passages that a model must continue; pure
errors     error bodies; pure
"""
