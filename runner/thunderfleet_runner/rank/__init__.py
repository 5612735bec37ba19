"""One rank's process: MLX, mlx-lm and the model. Nothing outside this package and ``sizing`` imports MLX.

============  ================================================================
start         from the process's start until its group has formed
rank          the process's threads, and its life from there on
channel       the socket to the supervisor
loading       loads this rank's part of the model
generation    turns: all ranks generate together
mlxlm         mlx-lm, as we use and mend it
stops         stop sequences in streamed text; pure
step_clock    how long steps take, for the heartbeat
allreduce     measures the group's all-reduce
capabilities  what this machine's MLX can do
============  ================================================================
"""
