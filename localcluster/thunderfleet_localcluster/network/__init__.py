"""The network of a local cluster.

plan        commands of ip and tc for a layout and its faults
namespaces  network namespaces: enter, check, run ip
forward     TCP forwarder from the user's shell to the API server
http_proxy  HTTP proxy from the user's shell to every address of the cluster; needs a token
"""
