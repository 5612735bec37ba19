"""Gives another Mac a control plane of the same cluster.

token     `thunderfleet token create`: a line for another Mac, with or without a control plane
join      `thunderfleet join --control-plane`: the steps on that Mac
handover  transfer of the cluster's keys to that Mac
sealed    encryption of these keys; pure
"""
