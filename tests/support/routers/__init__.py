"""Routers and gateways in this process.

scriptedgroup  the gateway's group with scripted answers
routing        small gateways and ModelDeployments, for the router
router         a router in this process, and its clients
"""
