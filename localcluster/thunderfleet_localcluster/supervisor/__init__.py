"""The process that runs one cluster; all other processes of the cluster end with it.

__main__       started by ``thunderfleet local up``
process        lock, namespaces, first process of the PID namespace
run            life of a cluster: start, commands, end
startup        steps of the start, in order
commands       commands on the UNIX socket
local_cluster  the parts of a cluster, its addresses, its end
joining        kubelets: tokens, joining, Ready
machine_pool   machines: files, power, network, faults
control_plane  programs of the control plane
changes        the effects of a command: faults and network (pure)
state          state file and status (pure)
spec           the cluster to run (pure)
report         progress for ``thunderfleet local up``
"""
