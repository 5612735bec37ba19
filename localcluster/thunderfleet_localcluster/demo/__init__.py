"""``thunderfleet demo``: a cluster of recorded Macs that serves a model.

demo     arguments and exit codes
steps    the steps
session  one run: cluster, kubectl, requests, comparison with mlx-lm
model    which model the demo serves, and its questions
"""
