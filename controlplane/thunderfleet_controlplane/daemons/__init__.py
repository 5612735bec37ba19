"""The control plane of a Mac as LaunchDaemons: from one configuration to property lists. Pure.

layout  the folders and files of a Mac that runs a control plane
plan    the daemons, in the order in which they are started
job     one daemon, and its property list
keys    the keys that launchd.plist(5) documents
"""
