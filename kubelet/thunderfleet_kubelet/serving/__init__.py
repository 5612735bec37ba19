"""The kubelet's HTTPS server.

=======  ======================================================================
server   routes and WebSocket streams
auth     who may call what
metrics  Prometheus metrics and /metrics/resource
=======  ======================================================================
"""
