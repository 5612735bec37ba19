"""What an installation needs of a Mac: what is known about it, its files, and its launchd.

facts       what preflight decides on, read from this Mac
preflight   what prevents an installation; pure
daemons     starts, replaces and ends LaunchDaemons
launchctl   calls of launchctl
files       files that only root can change
gpu_memory  the daemon that sets the limit of GPU memory at boot
logs        bounds logs that launchd keeps open
"""
