"""Programs, kinds and names of tests that come from other projects.

otherkinds       kinds of other projects, from their Go modules
nodeconformance  names of the tests of Kubernetes, from their sources
oldkubectl       kubectl of two minor versions before the cluster's
oldkubernetes    the control plane of the oldest version that the chart can be installed on
gomodules        builds these programs, and has files of Go modules
go/              the Go modules of programs that only tests need
"""
