"""RDMA over Thunderbolt: what the Mac's commands print, and the rules that decide whether a port can be used.

parse  the output of ``rdma_ctl status``, ``ibv_devices`` and ``ibv_devinfo -v``
rules  one table of rules for the agent, the operator and the runner
"""
