"""Makes a Mac (or, for trying, a Linux machine) a Kubernetes node whose pods are native process groups."""
