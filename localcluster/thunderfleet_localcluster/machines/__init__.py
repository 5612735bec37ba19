"""Processes of a local cluster's machines.

launchd    first process of a machine; run as a file with the standard library alone
jobs       LaunchDaemons of a recorded Mac: property lists, keeping alive, launchctl; standard library alone
launchctl  the command of a recorded Mac; run as a file
linux      calls of Linux that Python lacks; standard library alone
descendants  the descendants of a process, and their end; standard library alone
own_root   the part of a recorded Mac's file system that is not shared
children   child processes of the supervisor: started, watched, reaped
machine    one machine, for the supervisor
"""
