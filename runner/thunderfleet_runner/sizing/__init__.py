"""How much memory a model needs for each number of ranks, computed by mlx-lm itself.

The number of attention heads does not tell whether a model can be split, and the index of its files lists no sizes. So the
model is built lazily from its own files (no weight is read), split by its own ``shard()`` and ``pipeline()`` with a stand-in
group, and asked how many bytes remain; a refusal keeps mlx-lm's own words. Short lazy forward passes give
the key-value caches and the workspace.

command     the ``size`` command
arithmetic  facts to ``NodeProfile.status.models[]``; pure
bounded     runs ``dryrun`` in a child process with limits of time and memory
dryrun      the facts that only MLX can give
blank       weights without values, for ``dryrun``
graph       peak memory of a lazy graph, for ``dryrun``

A kind of model that mlx-lm does not know is sized by its files alone, says so, and fits one Mac only.
"""
