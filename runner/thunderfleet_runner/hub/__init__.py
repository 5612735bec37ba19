"""Reads models from the hub or from a URI: what runs in pods that the operator makes for a ModelCache.

command   the commands ``resolve``, ``download`` and ``quantize``; the termination message
resolve   a revision: its commit, its files, and the sizes of the model from the headers of its weights
quantize  a repository, into the staging folder, as files that mlx-lm has quantized
convert   what mlx-lm does for that, in a child process
download  the files of a manifest, into the staging folder of this Mac's model store
client    requests to the hub with `huggingface_hub`
errors    what the hub's refusals mean; pure
folder    the same requests to a folder at a URI
network   connections to the servers that the chart allows, to addresses that were checked
source    what the hub and a folder at a URI have in common
"""
