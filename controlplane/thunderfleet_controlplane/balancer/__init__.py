"""Forwards connections of a Mac to an API server that works, because kubectl and client-go use only one address.

A program on each Mac that listens on 127.0.0.1 and forwards bytes. TLS is between client and API server, whose certificate is
valid for 127.0.0.1, so the balancer cannot read the traffic.

servers  the API servers: their file, their list in the cluster, the order in which they are tried; pure
disk     the list on disk
proxy    connections, with limits
health   checks whether every API server is ready
learn    reads the addresses of the API servers from the cluster
look     the balancer's list and which API servers accept connections, for messages
"""
