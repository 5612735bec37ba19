"""``thunderfleet-operator plan``: the planner on files, without a cluster.

- ``command``  read the files, plan every group, render the answer
"""
