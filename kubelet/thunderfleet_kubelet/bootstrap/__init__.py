"""Joins a cluster and keeps the kubelet's certificates valid.

arguments     the arguments of the command line for joining
join          exchanges a bootstrap token for a client certificate
discovery     finds the API server, verifies the cluster's CA by its hash
identity      stores who this node is: server, name, certificates
certificates  certificate signing requests; key and certificate in one file
certificate_process    runs the process of certificate_work
certificate_work       keys, signing requests and contents of certificates, in a process of its own
renewer       renews a certificate before it expires
errors        why joining fails
"""
