"""Cached objects as immutable values.

Packages:

objects   Kubernetes objects as values, each by itself
fleet     several of them as the planner's Fleet, and what is taken of it

Modules:

observed  what one round has observed
reader    reads the index once for a round
index     the values of all cached objects, kept from round to round
concerns  which keys to work on after an object has changed
load      how many requests a ModelDeployment has
demands   what routers report of their requests
"""
