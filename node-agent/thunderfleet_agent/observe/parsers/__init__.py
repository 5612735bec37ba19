"""Parsers of the commands of macOS: pure functions from text to values. RDMA is parsed in ``thunderfleet_lib.rdma``.

hardware     the machine, its GPU, its limits and macOS
network      interfaces, hardware ports and network services
thunderbolt  Thunderbolt ports and the computers behind them
profiler     sections of a JSON report of `system_profiler`
"""
