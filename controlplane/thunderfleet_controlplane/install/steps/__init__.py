"""Steps of an installation that several commands have in common.

access        the balancer of this Mac, and the check of an API server's CA
kubelet       joins the kubelet of this Mac, and its daemon
chart         the chart, and its values that depend on the number of control planes
cluster       requests to the API server: objects, Nodes, tokens
certificates  certificates, keys and kubeconfigs of the control plane
programs      location and protection of the programs that launchd runs
"""
