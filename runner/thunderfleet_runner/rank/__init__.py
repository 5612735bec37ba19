"""One rank's process: MLX, mlx-lm and the model. Only this package and ``sizing`` import MLX.

__main__      ``python -m thunderfleet_runner.rank``
start         from the process's start until its group has formed
rank          the process's threads, and its life from there on
channel       the socket to the supervisor
checks/       that connections, products and layers give the right values
loading       loads this rank's part of the model
partial       the same from the files of its layers alone
engine        turns, requests and cancels
answers/      tokens and vectors of requests as messages
grammar       formats that answers must have
mlxlm         mlx-lm as we use and patch it
step_clock    how long the running step takes, for the heartbeat
step_times    how long it should take, by earlier steps; pure
allreduce     measures the group's all-reduce
capabilities  what this machine's MLX supports
"""
