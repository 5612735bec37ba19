"""What two programs need and no kind of the API knows.

========  ====================================================================
kube      the client of the API server, and list-and-watch
sandbox   where a container finds what its pod mounts
========  ====================================================================
"""
