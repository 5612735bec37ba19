"""``thunderfleet-operator plan``: the planner on files or a cluster, without changing it, to answer "what would happen if".

The fleet is the output of ``kubectl get nodes,np,tbl,md,mc,pods -A -o yaml``, edited at will. If the list includes ConfigMaps,
the plans in them name the queue pairs and cables that other groups use; otherwise this is derived from the status of
ModelDeployments.

command       runs the command
render        the result as table, JSON or YAML
report        the result as data, with its schema
simulate      plans every group as the operator would
hypothetical  cables and Macs that are added or taken away
cluster       reads the fleet from a cluster instead
weights       which Macs have the weights, and what would be fetched
read          reads and checks the files
arguments     the command line
"""
