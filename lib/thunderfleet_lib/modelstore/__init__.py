"""The folder in which a Mac keeps models that Thunderfleet has fetched: a Hugging Face cache with checked contents.

manifest   the files of one commit of a repository, with sizes and hashes; pure
sums       the list of the files at a URI with their hashes; pure
selection  which files of a repository belong to a model; pure
parts      which part of a model a folder has
layout     paths of manifests, blobs and models below the folder; pure
eviction   which models to remove when a disk limit is reached; pure
hashing    hashes of files, as the hub gives them
store      writes, checks and removes models; one writer per file
adoption   takes over files that another process downloads, and hashes them while they arrive
"""
