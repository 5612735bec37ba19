"""Models for tests, and where they are fetched from.

prompts         the test model's chat in tokens
fetching        a hub in the network of the Macs, ModelCaches, and what crosses cables and networks
folders         models at URIs: a server with HTTPS, its authority, and lists of files
embeddingmodel  a small random model for embeddings
copies          Macs that copy models from each other, on loopback addresses
copymodel       a model that copies what it has read
shardedmodel    the test model in several files of weights
largemodel      the test model with weights of several gigabytes, which answers with the same tokens
"""
