"""Cached objects as immutable values.

Packages:

objects   Kubernetes objects as values, each by itself
fleet     several of them as the planner's Fleet, and what is taken of it

Modules:

observed  what one round knows
reader    reads the index once for a round
index     the values of all cached objects, kept from round to round
concerns  which keys to work on after an object has changed
load      how much a ModelDeployment has been asked for
demands   what routers report of their requests
"""
