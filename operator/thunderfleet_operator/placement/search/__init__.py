"""The search for a set of Macs that takes the group, best first.

- ``stage``    cliques and rings of one size, by branch and bound
- ``fitting``  whether a set takes the group, and in which order of ranks
"""
