"""This Mac: what a supervisor checks, measures and starts on it.

============  ================================================================
preflight     the checks before an attempt
rdma          whether this Mac's RDMA devices work
wired_memory  memory that a killed process left wired
rankprocess   a rank's process: start, messages, end, exit code
parentdeath   ends a rank's process when its supervisor dies
weightfiles   a model's weight files: tensors, shapes, types
commands      the commands of this Mac
============  ================================================================
"""
