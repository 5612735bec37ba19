"""Names of the faults and changes that a user can make. Pure; it imports nothing, for command lines."""

CABLE_ACTIONS = ("pull", "plug", "slow", "cut", "move")
LAN_ACTIONS = ("pull", "plug", "address")
NO_ADDRESS = "none"
RDMA_ACTIONS = ("on", "off", "hang")
COMMANDS = (
    "system_profiler",
    "networksetup",
    "ifconfig",
    "netstat",
    "route",
    "vm_stat",
    "ibv_devices",
    "ibv_devinfo",
    "rdma_ctl",
    "sysctl",
    "sw_vers",
    "caffeinate",
    "pmset",
    "fdesetup",
    "socketfilterfw",
    "sntp",
    "df",
)
DAMAGES = {
    "hang": "never exits",
    "fail": "prints an error, exit code 5",
    "garble": "prints 300 bytes of its output, then garbage",
    "half": "prints the first half of its output",
    "empty": "prints nothing, exit code 0",
    "flood": "prints 50 MB",
    "absent": "does not exist",
    "mend": "works again",
}
SPEEDS = ("20", "40", "80", "120/40")
