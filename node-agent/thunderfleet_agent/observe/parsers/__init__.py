"""Parsers of the commands of macOS: pure functions from text to values.

RDMA is parsed in ``thunderfleet_lib.rdma``, interfaces and network services in ``thunderfleet_lib.macnet``.

hardware     the machine, its GPU, its limits and macOS
thunderbolt  Thunderbolt ports and the computers behind them
profiler     sections of a JSON report of `system_profiler`
sensors      how busy, hot and full a Mac is
"""
