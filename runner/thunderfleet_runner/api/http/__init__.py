"""The gateway: HTTP in front of the group.

gateway     the HTTP server
generation  one request from its body to its response
embeddings  one request for vectors from its body to its response
choices     several answers to one request
stream      a response as server-sent events
admission   lets requests wait until it is their turn
turns       which requests run, and in which order the others follow; pure
metrics     the gateway's metrics
"""
