"""Connections, ports and network settings for tests.

https        a TLS client with its own certificate
mac_network  the network settings of a recorded Mac, and the commands that read and change them
connections  connections that are held open without a request
proxy        the local cluster's HTTP proxy, for clients that build their own requests
ports        ports for programs that a test starts, which nobody else takes meanwhile
grpchealth   a server with gRPC's health service
"""
