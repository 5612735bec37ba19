"""``thunderfleet demo``: a cluster of recorded Macs that serves a model.

demo          arguments and exit codes
steps         the steps
installation  the cluster: `thunderfleet init` and `join` on recorded Macs, or a control plane of the local cluster
session       one run: cluster, kubectl, requests, comparison with mlx-lm
model         which model the demo serves, and its questions
"""
