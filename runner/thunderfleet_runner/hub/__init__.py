"""Reads models from the hub or from a URI, in pods that the operator creates for a ModelCache.

arguments  the options of the commands
command   the commands ``resolve``, ``download`` and ``quantize``; the termination message
resolve   a revision: its commit, its files, and the sizes of the model from the headers of its weights
quantize  quantizes a repository with mlx-lm into the staging folder
convert   the part of quantizing that mlx-lm does, in a child process
download  the files of a manifest, into the staging folder of this Mac's model store
client    requests to the hub with `huggingface_hub`
errors    maps errors of the hub to reasons and messages; pure
folder    the same requests to a folder at a URI
network   connections to the servers that the chart allows, to addresses that were checked
source    what the hub and a folder at a URI have in common
"""
