"""The operator: turns a ModelDeployment into a placement, runner pods and a status.

Packages, in the order in which a key passes through them:

watch      events from the API server in, keys out
observe    the cached objects as immutable values
planning   queries the planner, which is a process of its own
decide     from what was observed to one decision; pure
placement  the planner; pure
act        carries the decision out
plan_cli   `thunderfleet-operator plan`: the planner on files, without a cluster

Modules:

cli        the command line
app        starts and stops everything in order
worker     takes keys from the queue and runs their rounds
reconcile  one round for one ModelDeployment
reservations  lets one round at a time take memory, ports and cables of Macs
scaling    the state of autoscaling between rounds: requests, turns, reports of routers
health     the endpoints /metrics, /healthz and /readyz
metrics    the operator's own Prometheus metrics
object_metrics  Prometheus metrics of ModelDeployments, cables and Macs
"""
