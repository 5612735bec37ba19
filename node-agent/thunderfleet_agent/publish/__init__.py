"""Writes to the API server.

publisher     server-side apply of the NodeProfile and the ThunderboltLinks
fleet_sample  which other Macs this Mac reads in a large fleet; pure
"""
