"""This Mac's model store: the models that ModelCaches assign to the Mac.

keeper       watches ModelCaches, takes downloaded files over, makes room, reports progress
wanted       the models that ModelCaches assign to this Mac, and what it reports; pure
conversions  repositories that a pod on this Mac quantizes, and their progress
progress     rates and times left; pure
"""
