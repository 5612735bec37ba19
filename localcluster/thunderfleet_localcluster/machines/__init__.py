"""Processes of a local cluster's machines.

launchd   first process of a machine; run as a file with the standard library alone
children  child processes of the supervisor: started, watched, reaped
machine   one machine as the supervisor sees it
"""
