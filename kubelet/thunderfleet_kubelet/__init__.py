"""Makes a Mac, or a Linux machine for tests and demos, a Kubernetes node whose pods are native process groups.

==========  ======================================================================
cli         the command line: join, run, launchd-plist
app         one kubelet from start to stop
config      the configuration file
bootstrap   from a bootstrap token to certificates that renew themselves
node        the Node object, its Lease and its conditions
pods        what runs and why: admission, lifecycle, probes, status
containers  how it runs: files, users, volumes, processes of one pod on this machine
serving     the kubelet's HTTPS server: logs, exec, metrics
shim        the process that owns one container and outlives the kubelet
==========  ======================================================================
"""
