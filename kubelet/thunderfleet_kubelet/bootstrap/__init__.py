"""Joins a cluster and keeps the kubelet's certificates valid.

join          exchanges a bootstrap token for a client certificate
discovery     finds the API server, verifies the cluster's CA by its hash
identity      stores who this node is: server, name, certificates
certificates  certificate signing requests; key and certificate in one file
renewer       renews a certificate before it expires
errors        why joining fails
"""
