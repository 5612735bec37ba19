"""One pod's containers on this machine: files, users and processes.

============  ======================================================================
attempt       one start of one container
folder        a pod's folder: starts, stops and reads its containers
environment   variables, command and arguments of a container
volumes       volumes as folders, mounts as links
images        image names as folders on this machine
user          the user and groups a container runs as
exec_session  commands inside a container, with or without a terminal
logs          reads container logs
usage         CPU and memory of containers
============  ======================================================================
"""
