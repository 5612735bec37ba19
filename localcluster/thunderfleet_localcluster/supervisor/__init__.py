"""The process that owns everything in one cluster.

supervisor  start, commands and end of a cluster
"""
