"""Makes a Mac, or a Linux machine for tests and demos, a Kubernetes node whose pods are native processes.

cli          the command line: join, run, launchd-plist
app          assembles one kubelet and runs it
config       the settings
configfile   the configuration file, in a process of its own
configprocess  runs that process
credentials  the certificates in use, and their replacement
bootstrap    from a bootstrap token to certificates that renew themselves
singleton    one kubelet for each root folder
disk         whether file systems are full, and what pods use of them
pressure     thresholds of full file systems
node         the Node, its Lease and its conditions
pods         which containers run, and the pods' status
images       images that are pulled from registries
containers   how they run: files, users, volumes and processes of a pod
serving      the HTTPS server: logs, exec, metrics
shim         the process that owns one container and outlives the kubelet
timestamps   times as the API writes them
priority     its own nice value until it has taken over its pods
oneoff       short-lived processes for infrequent work that needs large libraries
answers      what these have answered, for the next start
version      the version that the Node reports
"""
