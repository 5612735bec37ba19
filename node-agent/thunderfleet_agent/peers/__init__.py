"""The agents of other Macs.

identity      this agent's certificate
known_peers   whether a certificate belongs to the agent of a node
token_bucket  limits the rate of lookups; pure
dial_rounds   rounds of dials
dial_plan     which addresses to dial, and from where; pure
dial          one dial: TLS, echoes, round trip
reachability  the facts that follow from the outcomes; pure
"""
