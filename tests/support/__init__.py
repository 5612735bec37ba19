"""Helpers that several folders of tests share.

waiting         wait for a condition, with a limit
processes       whether a process runs, or exists at all
pods            a node with real processes and an API server in memory
schemas         values that the schemas of our kinds allow
kubelets        a cluster of kubelets with many pods
line            a fleet with the chart and the model installed
logfiles        all logs of a local cluster, and whether a Secret is in one of them
trust           who may do what: the tables of identities and actions
csr             certificate requests of kubelets
runbooks        the commands that pages and alerts name
audit           who wrote what to the API server, from its audit log
api             reads from the API server without a kubectl process for each
generated       how many generated inputs a test sees
yamltext        reads and writes large YAML files quickly
suite/          how tests run: order, workers, tiers, times
network/        connections, ports, TLS, and network settings of recorded Macs
models/         small models for tests, and where they are fetched from
routers/        routers and small gateways in this process
page/           the live page, and a browser that shows it
images/         images and registries
monitoring/     Prometheus, Grafana and external metrics
otherprojects/  programs, kinds and test names of other projects
install/        what `thunderfleet` installs, and upgrades of it
"""
