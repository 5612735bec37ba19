"""The pods of this node: which containers run, and the status that says so.

=========  ======================================================================
manager    accepts pods, starts one worker per pod, answers the server
worker     drives one pod: observes, decides, acts, publishes
lifecycle  decides which containers start and stop, and the pod's status
admission  decides whether a pod fits this node
probes     runs probes and hooks, counts their results
events     writes Events to the API server
objects    ConfigMaps, Secrets and service account tokens, cached
settings   the part of the configuration that running pods need
=========  ======================================================================
"""
