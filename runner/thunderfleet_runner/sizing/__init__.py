"""How much memory a model needs for each number of ranks, computed by mlx-lm itself.

The number of attention heads does not show whether a model can be split, and the index of its files has no sizes. So the model
is built lazily from its own files (no weight is read) and split by its own ``shard()`` and ``pipeline()`` with a stand-in
group; then the bytes of each rank are added up. If mlx-lm refuses a split, its message is kept. Short lazy forward passes give
the key-value caches and the workspace.

command     the ``size`` command
sizes       facts to ``NodeProfile.status.models[]``; pure
arithmetic  what can be computed from facts and configurations; pure
bounded     runs ``dryrun`` in a child process with limits of time and memory
dryrun      the facts that only MLX can give
blank       weights without values, for ``dryrun``
graph       peak memory of a lazy graph, for ``dryrun``

If mlx-lm does not support a model's type, the model is sized by its files alone, which the result records, and can be placed on
one Mac only.
"""
