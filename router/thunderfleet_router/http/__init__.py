"""The router's HTTP server, and its requests to gateways.

server    paths, around every request
page      the live page: which caller sees which objects
exchange  one request: its caller, its seat, its attempts
upstream  one attempt at one group
reply     the response to a client
metrics   metrics for Prometheus
"""
