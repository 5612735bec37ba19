"""Saves the control plane of this Mac in one file, and restores it.

save     `thunderfleet backup`: writes the file
restore  `thunderfleet restore`: replaces the control plane by the one in a file, or keeps the present one
etcd     snapshots of the running etcd, and data of an etcd from a snapshot
archive  the file: written atomically, and read within size limits
"""
