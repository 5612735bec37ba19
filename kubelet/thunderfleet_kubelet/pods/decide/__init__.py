"""Decisions about pods: pure functions of the pod, of what was observed, and of the time.

lifecycle   which containers start and stop now
admission   whether this node takes a pod
eviction    which pods leave because of the disk
status      the status to publish: phase, conditions, container states
progress    init containers done, pod finished, pod ending
observed    what is observed of a pod, as one value
podspec     a pod's spec, with the API's defaults
probing     intervals and thresholds of probes
publishing  whether a status needs writing, and as which patch
"""
