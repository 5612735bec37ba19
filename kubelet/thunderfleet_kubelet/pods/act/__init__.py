"""What a worker does for its pod.

mounter      sets up volumes and keeps them current
starter      starts containers, runs postStart hooks
stopper      stops containers, runs preStop hooks
prober       runs the probes of live containers
probes       runs one probe or hook: exec, HTTP, TCP, gRPC
grpc_health  requests the health of a pod's server
publisher    writes the status to the API server
"""
