"""What goes into a running container, and what comes out.

attach        input and output of a running container
exec_session  commands in a container, with or without a terminal
logs          reads container logs
"""
