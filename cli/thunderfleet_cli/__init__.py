"""The ``thunderfleet`` command. Each command, or group of commands, is a package that adds itself to the parser.

A command imports its implementation when it is called: no command waits for the modules of the others.

__main__    ``python -m thunderfleet_cli``
cli         all commands; exit codes and signals
doctor/     ``thunderfleet doctor``: problems of this Mac, the other Macs and the cables
install/    ``thunderfleet init``, ``join``, ``reset``: a control plane and nodes on Macs
local/      ``thunderfleet local``: local clusters with recorded Macs
model/      ``thunderfleet model``: models that Macs keep on their disks
run/        ``thunderfleet run``: serve a model in any cluster, and chat with it
support/    ``thunderfleet support``: an archive for support requests
view/       ``thunderfleet status``, ``why`` and others: the state of a fleet, and its causes
completion  completes command lines of the plugin of kubectl
connection  the cluster of a command, and how its endpoints are reached
parsers     argument parsers of commands and their subcommands
terminal    texts of others without control characters
"""
