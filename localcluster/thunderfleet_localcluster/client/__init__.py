"""Local clusters from Python: for the command line, the demo and the tests.

cluster    start or attach to a cluster, and control its machines, cables and components
launch     start the supervisor and wait until the cluster is up
addresses  loopback addresses that are missing on a Mac, and the offer to add them
control    commands to the supervisor; end a cluster, remove its data
"""
