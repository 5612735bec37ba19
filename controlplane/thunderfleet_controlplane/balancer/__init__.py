"""Leads everything on a Mac to an API server that works, because kubectl and client-go know only one.

A program on each Mac that listens on 127.0.0.1 and passes bytes on. TLS is between client and API server, whose certificate is
valid for 127.0.0.1; the balancer can read nothing.

servers  the API servers: file, what the cluster says, order in which they are tried; pure
proxy    connections, with bounds
health   asks every API server whether it is ready
learn    reads from the cluster where its API servers are
look     what the balancer knows and which API servers accept connections, for people
"""
