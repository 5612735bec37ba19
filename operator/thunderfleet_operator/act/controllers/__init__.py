"""Rounds for what is not a ModelDeployment.

mac          one round for one Mac
link         one round for one cable
cache        one round for one ModelCache
certificate  one round for the certificate requests of a Node
"""
