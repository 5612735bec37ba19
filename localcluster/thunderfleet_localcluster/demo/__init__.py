"""``thunderfleet demo``: a cluster of recorded Macs that serves a model.

demo          arguments and exit codes
steps         the steps
installation  the cluster: `thunderfleet init` and `join` on recorded Macs, or a control plane of the local cluster
hub           the machine that serves the model until Macs have it
session       one run: cluster, kubectl, requests, comparison with mlx-lm
model         the model of the demo, and its questions
"""
