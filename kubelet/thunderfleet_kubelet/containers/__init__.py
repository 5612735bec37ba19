"""One pod's containers on this machine: files, users and processes.

inputs          what a container gets from its spec: variables, image, user, volumes
runtime         starts and stops containers, reads their state
launch          prepares a sandbox and starts its shim
watch           whether a shim is alive
folder          where a pod's files are
attempt         one start of one container, as a value
streams/        what goes into a running container, and what comes out
listeners       where a container's processes listen
termination     termination messages
leftovers       ends processes by user, deletes what containers wrote
usage           CPU and memory of containers
mac_memory      the memory that macOS attributes to a process
errors          why a container cannot be created
"""
