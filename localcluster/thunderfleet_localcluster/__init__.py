"""A local Kubernetes cluster with recorded Macs: for demos, tests and small fleets.

__main__        ``python -m thunderfleet_localcluster``
cli             arguments and exit codes of ``thunderfleet``
cli_commands    what its subcommands do
status_view     the text of ``thunderfleet local status``
demo/           ``thunderfleet demo``
run/            ``thunderfleet run``: serve a model in any cluster, and chat with it
support/        ``thunderfleet support``: an archive for support requests
client/         clusters from Python
supervisor/     the process that runs one cluster
network/        LAN and cables, forwarder, HTTP proxy
recorded/       commands of recorded Macs
machines/       processes of machines
fleet/          what a fleet is, and its faults
models/         models to serve, and what to compare answers with
image           the image of our programs
programs        finding the programs of the control plane
paths           locations on this machine
cluster_folder  layout of one cluster's folder
shipped         the chart and the examples, in a wheel or a checkout
progress        progress on a terminal
errors          the error with an exit code
"""
