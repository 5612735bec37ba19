"""Joins a cluster and keeps the kubelet's certificates valid.

============  ======================================================================
join          checks the cluster's CA, trades the token for a certificate, stores the identity
certificates  certificate signing requests, key files, renewal
============  ======================================================================
"""
