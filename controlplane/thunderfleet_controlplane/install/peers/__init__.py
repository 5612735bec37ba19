"""The members of etcd, one on each Mac with a control plane.

leave    removes a control plane: that of this Mac, or that of one that does not come back
settle   makes the etcd of this Mac a member that votes, at the address that this Mac has now
members  requests to etcd about its members
quorum   what its members are, and what happens when one leaves; pure
"""
