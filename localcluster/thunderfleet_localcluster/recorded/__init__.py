"""Recorded Macs: for each Mac of a fleet, a folder of small commands with the output of that Mac.

The texts have the format of real captures. They match each other, with the other end of every cable and with the addresses
that the machine really has.

folder        writes commands, texts and JACCL of one Mac
commands      the commands as shell scripts
thunderbolt   system_profiler SPThunderboltDataType
hardware      the other reports of system_profiler, sysctl, sw_vers, vm_stat
network       networksetup, ifconfig, netstat, route
rdma          ibv_devices, ibv_devinfo
jaccl         modifications of MLX: the modules in ``python/``, and the devices and cables for a stand-in for JACCL
jaccl_faults  the points at which the stand-in can fail
files         replacing a file in one step
python/       modules on the Mac's PYTHONPATH
"""
