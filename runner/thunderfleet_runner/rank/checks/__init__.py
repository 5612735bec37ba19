"""Checks of a group's computation before it serves. Each raises an error if a value is wrong.

connections  values go through the connections unchanged
kernels      products with the model's matrices are right on this Mac
layers       the ranks together compute the same as whole layers
"""
