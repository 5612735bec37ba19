"""The pods of this node: which containers run, and the status that is published.

manager     all pods: adopts, admits, starts one worker per pod
queries     answers the server's questions: logs, exec, ports, usage
evictor     evicts pods that use too much disk, or all that must leave while it is full
disk_usage  how much of the disk each pod uses
worker      drives one pod: observes, decides, acts, publishes
act         what a worker does for its pod: volumes, starts, probes, stops, status
context     what the parts of a worker share
events      writes Events
objects     reads ConfigMaps, Secrets and tokens, with a cache
users       which pod has which user
leavings    what a pod's users leave outside of its folder, and what of it is removed
settings    the configuration that pods need
decide      the decisions, as pure functions
"""
