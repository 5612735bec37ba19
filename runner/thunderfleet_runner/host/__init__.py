"""This Mac: checks, measurements and processes of a supervisor.

preflight     the checks before an attempt
rdma          whether the planned RDMA devices can be used
memory        free and wired memory
wired_memory  memory that stays wired after a rank was killed; pure but for
              its reader
rankprocess   a rank's process: start, messages, end, exit code
intakeprocess  the intake's process: start, questions, end
priority      the nice value of a process that starts
parentdeath   ends a rank's process when its supervisor dies
weightvalues  the values of the weights as one hash
broken_models  models that do not work with mlx-lm; pure
weightfiles   the tensors in a model's weight files
commands      runs commands, and keeps track of those that hang
"""
