"""What is decided about models that are fetched. Pure.

deployment  the ModelCache of a ModelDeployment, and what its groups wait for
cache       one round for one ModelCache: which Macs hold it, which pods read from the hub
quantizing  rounds in which a repository is quantized, until the result is known
uplink      how fast a Mac probably reaches the hub
manifests   those pods
status      the status of a ModelCache
"""
