"""One pod of a served model: a supervisor that never blocks, and the rank process that it owns.

cli         the command line: ``serve``, ``capabilities``, ``size``, ``resolve``, ``download``
serving     the command ``serve``: reads the plan, runs the supervisor
supervisor  the container's process; assembles one pod from the packages below
group       forming a group, supervising its ranks, recovering from failures
api         the OpenAI gateway of rank 0, and what generates load by itself
host        this Mac: checks before an attempt, memory, the rank's process
net         connections between pods: control port, relays, JACCL's exchange
protocol    messages between a supervisor and its rank process
intakeprotocol  messages between a supervisor and its intake process
framing     how those messages are framed, and how the socket is handed over
faults      every failure a group can have: class, reason, message
rank        the rank's process: MLX, mlx-lm, the model
intake      the process that checks, renders and tokenizes requests
hub         reads models from the hub
sizing      how much memory a model needs, computed from the model itself

The supervisor and everything it imports stay free of MLX, transformers and tokenizers; only ``rank``, ``intake`` and ``sizing``
have them.
"""
