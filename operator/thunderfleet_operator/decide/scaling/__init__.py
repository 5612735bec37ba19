"""The number of groups of a ModelDeployment with ``spec.autoscaling``.

autoscaling  how many groups there are: by requests in progress, to zero, and awake again
turns        which ModelDeployments make room for one that was requested
"""
