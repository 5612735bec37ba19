"""The group's HTTP API, on rank 0. The other ranks' gateways serve probes and metrics only.

http       the HTTP server
prepare    a body becomes a checked request in tokens; pure
request    what a client asks for, whatever the dialect; pure
answer     what the model has generated, whatever the dialect; pure
examine    questions about tokens; pure
embed      texts whose vectors a client asks for; pure
openai     OpenAI's dialects; pure
anthropic  Anthropic's dialect; pure
upkeep     what the group generates for itself
intake     request bodies through the intake process
intakehealth  whether the intake process works; pure
service    requests on their way to rank 0 and back
visits     how many requests of clients there are; pure
passages   what a model must continue; pure
errors     error bodies; pure
"""
