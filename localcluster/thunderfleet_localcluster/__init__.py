"""A local Kubernetes cluster with recorded Macs: for demos, tests and small fleets.

demo/           ``thunderfleet demo``
client/         clusters from Python
supervisor/     the process that runs one cluster
network/        LAN and cables, forwarder, HTTP proxy
recorded/       commands of recorded Macs
machines/       processes of machines
fleet/          description of a fleet, and its faults
models/         models to serve, and reference answers
image           the image with Thunderfleet's programs
checked_copy    verified copies for root of files that another user can change
programs        finding the programs of the control plane
paths           locations on this machine
cluster_folder  layout of one cluster's folder
shipped         the chart and the examples, in a wheel or a checkout
progress        progress on a terminal
errors          the error with an exit code
"""
