"""One pod's containers on this machine: files, users and processes.

runtime         starts and stops containers, reads their state
launch          prepares a sandbox and starts its shim
watch           whether a shim is alive
folder          where a pod's files are
attempt         one start of one container, as a value
environment     variables, command and working directory; pure
sources         values from ConfigMaps, Secrets and the downward API; pure
volume_content  the files of ConfigMap, Secret and projected volumes; pure
volumes         volumes as folders, mounts as links
images          image names to folders
user            the user and groups of a container
exec_session    commands in a container, with or without a terminal
logs            reads container logs
termination     termination messages
leftovers       ends processes by user, deletes what containers wrote
usage           CPU and memory of containers
errors          why a container cannot be created
"""
