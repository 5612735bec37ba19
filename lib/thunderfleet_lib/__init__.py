"""Code that several programs share and that is independent of the API's kinds.

backoff     exponential back-off with limit and jitter
clientparts  parts of the official Kubernetes client that are loaded when they are used
clock       clocks that count sleep
csr         certificate requests of kubelets: parser and rules
descriptors  how many more files and connections a process can open
discovery   the certificate authority of a server, by its hash
eventlimit  a bound on the Events about one object; pure
gpu_memory  how much memory the GPU of a Mac may use
helpformat  the format of ``--help``
hostcmd     runs commands of this machine, with limits on time and output
httpapi     requests to models over HTTP: errors of each dialect, bodies, headers of routers
interfaces  addresses of a Mac, from what `route` and `ifconfig` print
jsonbounds  JSON from untrusted clients, bounded before it becomes objects
kube        requests to the API server, list and watch
listener    a listener for HTTP servers with a bound on connections
logs        logs with the same fields in all programs: JSON in a cluster, text on a terminal
logtext     lines of these logs as text for people; pure
macnet      network settings of a Mac: parsers, and one network service for each Thunderbolt port
metrics     Prometheus metrics that every program has, and labels for all metrics of one
modelstore  the folder of models that a Mac has fetched: manifest, layout, checked writes
parsing     parsers of command output: errors, bounds, checks
privatefiles  files that only their owner reads
privilege   what root may use of its caller: environment, commands, files
quantity    Kubernetes quantities as exact numbers
rdma        RDMA over Thunderbolt: parsers and the table of rules
sandbox     where a container finds the volumes of its pod
timestamps  ages of timestamps from clocks that may be wrong
trees       removes trees of other users, shows the last lines of files
tls         keys, certificates and signing requests
tlsbuffers  how much memory asyncio keeps for each TLS connection
unclaimed   what clients send before a request is known, counted by connection and address; pure
"""

from thunderfleet_lib import clientparts

__all__ = ["clientparts"]
