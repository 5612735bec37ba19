"""The operator: turns a ModelDeployment into a placement, runner pods and a status.

Packages, in the order in which a key passes through them:

watch      events from the API server in, keys out
observe    the cached objects as immutable values
decide     from values to a decision; pure
placement  the planner; pure
act        writes to the API server, requests to the groups
plan_cli   `thunderfleet-operator plan`: the planner on files, without a cluster

Modules:

cli        the command line
app        starts and stops everything in order
reconcile  one round for one ModelDeployment
metrics    the operator's own Prometheus metrics
"""
