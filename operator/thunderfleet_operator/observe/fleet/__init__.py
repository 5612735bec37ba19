"""The planner's Fleet, and what is taken of it.

builder      Nodes, NodeProfiles and ThunderboltLinks as the planner's Fleet
weights      the fleet with a model that is fetched
links        the cables of each Mac
steadiness   which cables have worked long enough since their last interruption
corrections  how far predicted rates are from measured ones
usage        what pods and plans take on each Mac
"""
