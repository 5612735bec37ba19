"""Figures of the whole line, each with both of its sides in one run: ``make bench``, or ``python -m tests.bench``.

Absolute seconds depend on the machine and on what else it does; ratios of two things done in the same minute much less so.
Every figure that the project has promised carries its bound here, and the table says whether it holds.

benchmarks  the benchmarks, each of one promise
figures     figures with their bounds, as a table and as JSON; pure
line        a cluster with the chart and the models installed
models      the models that benchmarks serve
client      streams completions and times their tokens
byhand      the baseline: the same two ranks without Thunderfleet
serving     many clients at once
cables      groups that lose their cable or their supervisor
proofs      what groups prove before they serve: what it costs, false alarms, what it finds
formation   how soon groups form and recover
copies      models from Mac to Mac
copymac     one Mac of these
weights     the hub, ranks beside a copy, and what loading from a neighbour could save
weightmac   what runs on a Mac for these
discovery   how soon a pulled cable is known, and what agents cost
hour        one agent's rounds of an hour, without the pauses
installing  init and join on Macs, their boot, and an upgrade
kubelet     pods of one kubelet: start, many at once, cost, logs, without a cluster
macpods     one kubelet of the cluster: what it costs with many pods, and port-forward
measure     what probes find and cost
routing     what the router costs and what its balancing is worth
waking      wake from zero, and a router before real ranks
connections memory of a router with a thousand clients that do nothing
sizes       chart, objects and CRDs, against the limits of Kubernetes
simulated   processes with simulated steps, and a router before them
conversations  conversations from a seed, and policies of balancing, in simulated time; pure
scrape      what a scrape of the operator costs, without a cluster
commands    status, topology and why of 1,000 Macs, before a real API server
metering    what the metrics of a request cost, without a cluster
page        the live page of 1,000 Macs, without a cluster
placement   the planner, without a cluster
masks       forced formats on a rank, without a cluster
scale       one operator of 1,000 and of 5,000 simulated Macs
written     what their agents and kubelets have written, put into etcd
fleetload   what their kubelets and ranks do meanwhile
processes   memory and processor time of processes
"""
