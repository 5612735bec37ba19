"""Decides which probe runs when. Every module here is pure; times are arguments.

settings   the chart value agent.measure
probes     the probes, their limits and what they need
view       the cables and peers of this Mac, and the probes that follow
gates      which probes must wait for a group
due        which probe runs now
figures    the figures of a probe, and when new ones are published
freshness  condition BenchmarksFresh
"""
