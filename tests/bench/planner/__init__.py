"""Figures of the planner, without a cluster.

placement  against listing every cycle of the fleet, and on fleets that grow
shapes     fleets that are made to be slow to plan
"""
