"""A local Kubernetes cluster with recorded Macs: for demos, tests and small fleets.

demo/           ``thunderfleet demo``
client/         clusters from Python
supervisor/     the process that runs one cluster
network/        LAN and cables, forwarder, HTTP proxy
recorded/       commands of recorded Macs
machines/       processes of machines
fleet/          what a fleet is, and its faults
models/         models to serve, and what to compare answers with
image           the image of our programs
checked_copy    copies for root of files that another user can change
programs        finding the programs of the control plane
paths           locations on this machine
cluster_folder  layout of one cluster's folder
shipped         the chart and the examples, in a wheel or a checkout
progress        progress on a terminal
errors          the error with an exit code
"""
