"""The kubelet's HTTPS server.

server      listener and routes
channels    streams of exec and attach over a WebSocket
parameters  query parameters; pure
auth        authenticates and authorizes requests
metrics     Prometheus metrics and /metrics/resource
"""
