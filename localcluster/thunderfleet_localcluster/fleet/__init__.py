"""A fleet: its machines and cables, and their faults.

catalogue    Mac models: chips, ports, memory sizes
spec         schema of a fleet: machines, devices, cables
checks       problems that need more than one value
file         fleet files: YAML, messages with line numbers, the default fleet
layout       addresses, interfaces and identifiers of a fleet
actions      names of faults and changes
fault_state  faults and changes since the cluster started
network_settings  network services and bridge of a recorded Mac, and the effects of its commands
own_settings      a Mac's layout under those settings
"""
