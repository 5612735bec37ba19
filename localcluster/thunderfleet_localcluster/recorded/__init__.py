"""Recorded Macs: a folder of small commands for each Mac of a fleet, which print what that Mac would print.

The texts have the shapes of real captures. They agree with each other, with the other end of every cable and with the addresses
that the machine really has.

folder        writes commands, texts and JACCL of one Mac
commands      the commands as shell scripts
thunderbolt   system_profiler SPThunderboltDataType
hardware      the other reports of system_profiler, sysctl, sw_vers, vm_stat
network       networksetup, ifconfig, netstat, route
rdma          ibv_devices, ibv_devinfo
jaccl         what changes MLX: the modules in ``python/``, and the record of devices and cables of a stand-in for JACCL
jaccl_faults  where the stand-in can be made to fail
files         replacing a file in one step
python/       modules on the Mac's PYTHONPATH
"""
