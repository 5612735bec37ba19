"""The ways to another Mac, and connections over them.

connection  one connection to another agent
tls         TLS of a client that reads large amounts of data
paths       the ways to another Mac, best first; pure
pace        limits the rate of a way; pure
"""
