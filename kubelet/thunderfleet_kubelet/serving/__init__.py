"""The kubelet's HTTPS server.

server       listener and routes
channels     streams of exec and attach over a WebSocket
parameters   query parameters; pure
portforward  kubectl port-forward: SPDY streams over a WebSocket
auth         authenticates and authorizes requests
stats        /metrics/cadvisor, /metrics/probes and /stats/summary
expiry       when the certificates of a control plane expire
metrics      Prometheus metrics and /metrics/resource
"""
