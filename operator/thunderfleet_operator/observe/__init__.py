"""Cached objects as immutable values.

snapshot    groups, pods, plans and what is taken on each Mac
fleet       Nodes, NodeProfiles and ThunderboltLinks as the planner's Fleet
"""
