"""Helpers that several folders of tests share.

waiting      wait for a condition, with a limit
processes    whether a process runs, or exists at all
prompts      the demo's chat in tokens
fetching     a hub in the network of the Macs, ModelCaches, and what crosses cables and networks
folders      models at URIs: a server with HTTPS, its authority, and lists of files
externalmetrics  the API of external metrics, from the metrics of runners
otherkinds   kinds of other projects, from their Go modules
https        a TLS client with its own certificate
mac_network  the network settings of a recorded Mac, and the commands that read and change them
connections  connections that are held open without a request
proxy        the local cluster's HTTP proxy, for clients that build their own requests
ports        ports for programs that a test starts, which nobody else takes meanwhile
pods         a node with real processes and an API server in memory
embeddingmodel  a small random model for embeddings
fleetimage   images of Thunderfleet for Macs
fleetpage    the live page of a fleet without a cluster
schemas      values that the schemas of our kinds allow
panels       the dashboards' queries, and what scrapes the metrics for them
grafana      what Grafana's schema allows as a dashboard
browser      headless Chromium
screenshots  pictures of the page, from a real run
scriptedgroup  the gateway's group with scripted answers
routing      small gateways and ModelDeployments, for the router
router       a router in this process, and its clients
copies       Macs that copy models from each other, on loopback addresses
copymodel    a model that copies what it has read
shardedmodel  the test model in several files of weights
largemodel   the test model with weights of several gigabytes, which answers with the same tokens
nodeconformance  names of the tests of Kubernetes, from their sources
oldkubectl   kubectl of two minor versions before the cluster's
kubelets     a cluster of kubelets with many pods
line         a fleet with the chart and the model installed
logfiles     all logs of a local cluster, and whether a Secret is in one of them
installed    a recorded Mac on which `thunderfleet` installs
wheel        the wheel, installed without the checkout
upgrading    a newer version to upgrade to, and a client that sends requests meanwhile
trust        who may do what: the tables of identities and actions
times        runs make targets and prints where the time went
tiers        which cases of a matrix `make test` runs
order        which worker runs which file, and in which order
rewriting    the assertions of tests, rewritten once for all workers
csr          certificate requests of kubelets
distribution  CNCF distribution, built from its Go module and filled over its API
go           the Go modules of programs that only tests need
grpchealth   a server with gRPC's health service
gomodules    builds these programs, and has files of Go modules
runbooks     the commands that pages and alerts name
prometheusserver  a real Prometheus in a fleet, and its API
prometheusoperator  the kinds of prometheus-operator, and the configuration that it generates
registry     an OCI registry that can send wrong content, break off and slow down
oci          an OCI image layout, read as a container runtime reads it
audit        who wrote what to the API server, from its audit log
api          reads from the API server without a kubectl process for each
"""
