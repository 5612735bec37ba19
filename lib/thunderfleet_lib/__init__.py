"""Code that several programs share and that is independent of the API's kinds.

backoff     exponential back-off with limit and jitter
clientparts  parts of the official Kubernetes client that are loaded when they are used
clock       clocks that count sleep
collector   keeps the garbage collector from the modules that a program imports
csr         certificate requests of kubelets: parser and rules
eventlimit  a bound on the Events about one object; pure
helpformat  the format of ``--help``
host        commands, their output, files and users of a machine
httpapi     requests to models over HTTP: errors of each dialect, bodies, headers of routers
jsonbounds  JSON from untrusted clients, bounded before it becomes objects
kube        requests to the API server, list and watch
logs        logs with the same fields in all programs: JSON in a cluster, text on a terminal
logtext     lines of these logs as text for people; pure
macnet      network settings of a Mac: parsers, and one network service for each Thunderbolt port
metrics     Prometheus metrics that every program has, and labels for all metrics of one
modelstore  the folder of models that a Mac has fetched: manifest, layout, checked writes
net         certificates, and listeners with bounds
quantity    Kubernetes quantities as exact numbers
rdma        RDMA over Thunderbolt: parsers and the table of rules
timestamps  ages of timestamps from clocks that may be wrong
"""

import os

from thunderfleet_lib import clientparts

__all__ = ["clientparts"]

# For its first model, Pydantic would search the metadata of all installed packages for plugins, of which our programs use none.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
