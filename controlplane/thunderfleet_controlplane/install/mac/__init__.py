"""The parts of a Mac that an installation uses: facts, files, and launchd.

facts       the input of preflight, read from this Mac
preflight   problems that prevent an installation; pure
daemons     starts, replaces and ends LaunchDaemons
launchctl   calls of launchctl
files       files that only root can change
gpu_memory  the daemon that sets the limit of GPU memory at boot
logs        limits the size of logs that launchd keeps open
"""
