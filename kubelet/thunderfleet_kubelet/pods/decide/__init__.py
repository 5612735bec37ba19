"""Decisions about pods: pure functions of the pod, of what was observed, and of the time.

=========  ======================================================================
admission  whether this node takes a pod
lifecycle  which containers start and stop now
status     the status to publish: phase, conditions, container states
progress   init containers done, pod finished, pod ending
observed   what the worker observes of a pod, as one value
podspec    what a pod's spec says, with the API's defaults
=========  ======================================================================
"""
