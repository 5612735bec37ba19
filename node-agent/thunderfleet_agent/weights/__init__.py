"""The models that this Mac shall hold: its model store, kept as ModelCaches ask.

keeper    watches ModelCaches, takes downloaded files over, makes room, reports progress
wanted    what the ModelCaches ask of this Mac, and what it reports; pure
progress  rates and times left; pure
"""
