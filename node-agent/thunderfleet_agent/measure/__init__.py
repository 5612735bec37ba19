"""Measures GPU, memory and links without disturbing the groups that use them.

A probe is one measurement; users see it as a benchmark, in the API, the chart's values and messages.

prober       runs this Mac's probes, and takes part in those of peers
admission    whether this Mac takes part in a probe that a peer requests; pure
ledger       the results: kept across restarts, and published when they change
published    the results in NodeProfile and ThunderboltLinks, written and read back; pure
measure_cli  `thunderfleet-agent measure`
schedule     which probe runs when; pure
session      a probe between two Macs
worker       one measurement with MLX in a process of its own
"""
