"""The members of etcd, one on each Mac with a control plane.

leave    removes a control plane: that of this Mac, or of a Mac that does not come back
settle   makes the etcd of this Mac a voting member at the Mac's current address
members  requests to etcd about its members
quorum   the members of etcd, and the effects of removing one; pure
"""
