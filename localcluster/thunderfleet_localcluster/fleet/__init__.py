"""A fleet: which machines and cables there are, and what has happened to them. Pure.

catalogue    Mac models: chips, ports, memory sizes
file         the fleet file: models, checks, errors with line numbers
layout       addresses, interfaces and names that follow from a fleet
fault_state  changes since start: cables, power, RDMA, damaged commands
"""
