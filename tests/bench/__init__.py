"""Figures of the whole line, each with both of its sides in one run: ``make bench``, or ``python -m tests.bench``.

Absolute seconds depend on the machine and on what else it does; ratios of two things done in the same minute much less so.
Every figure that the project has promised carries its bound here, and the table says whether it holds.

benchmarks  the benchmarks, each of one promise
figures     figures with their bounds, as a table and as JSON; pure
line        a cluster with the chart and the models installed
models      the models that benchmarks serve
client      streams completions and times their tokens
baseline    the same two ranks without Thunderfleet
installing  init and join on Macs, their boot, and an upgrade
processes   memory and processor time of processes
__main__    the command line
groups/     groups of ranks: how they form, recover, prove and serve
routing/    routers, and what they balance
transfers/  models and images over cables and networks
fleets/     one operator of 1,000 and more Macs
planner/    the planner, without a cluster
macs/       what agents and kubelets do and cost on a Mac
"""
