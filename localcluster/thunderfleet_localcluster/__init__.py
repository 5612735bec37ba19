"""A real Kubernetes control plane on this machine, and recorded Macs to join it: for demos, tests and small fleets."""
