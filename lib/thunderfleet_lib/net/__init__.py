"""Connections of programs: certificates, and listeners that unauthenticated clients cannot exhaust.

authorities  imports aiohttp without the certificates of the authorities that this machine trusts
discovery  the certificate authority of a server, by its hash
listener  a listener for HTTP servers with a bound on connections
redirects  clients that follow no redirects
scopes  whether an address is public, private or of no other machine; pure
tls  keys, certificates and signing requests
tlsbuffers  how much memory asyncio keeps for each TLS connection
unclaimed  what clients send before a request is known, counted by connection and address; pure
"""
