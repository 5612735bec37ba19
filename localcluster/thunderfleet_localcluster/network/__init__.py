"""The cluster's own network.

namespaces  LAN and cables in network namespaces
forward     forwarder to the API server, and the HTTP proxy
"""
