"""One rank's process: MLX, mlx-lm and the model. Only this package and ``sizing`` import MLX.

__main__      ``python -m thunderfleet_runner.rank``
start         from the process's start until its group has formed
rank          the process's threads, and its life from there on
channel       the socket to the supervisor
proof         checks that the connections carry values unchanged
kernels       checks products with the model's matrices on this Mac
layers        checks that the ranks together compute the same as whole layers
loading       loads this rank's part of the model
partial       the same from the files of its layers alone
engine        turns, requests and cancels
answer        one request's tokens as messages
vectors       one request's vectors as a message
grammar       formats that answers must have
mlxlm         mlx-lm as we use and patch it
stops         stop strings in streamed text; pure
step_clock    how long the running step takes, for the heartbeat
step_times    how long it should take, by earlier steps; pure
allreduce     measures the group's all-reduce
capabilities  what this machine's MLX supports
"""
