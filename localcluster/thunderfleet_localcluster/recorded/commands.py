"""The commands of a recorded Mac: POSIX shell scripts that print prepared texts. Pure.

A script refuses unknown arguments with the message of the macOS command. To be fast, it starts no other program than cat
where possible.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from thunderfleet_localcluster.fleet.layout import Layout, MachineLayout
from thunderfleet_localcluster.fleet.network_settings import WRITES, Service
from thunderfleet_localcluster.recorded import hardware, network, rdma


def damaged(name: str, whole: Path, how: str) -> str:
    """The script of a damaged command; ``whole`` is the path of the undamaged one."""
    true = shlex.quote(str(whole))
    body = {
        "hang": "exec sleep 2147483647",
        "fail": f'echo "{name}: Input/output error" >&2; exit 5',
        "garble": f"{true} \"$@\" 2>&1 | head -c 300; printf '\\377\\376]]}}{{ \\000 \\033[0m'",
        "half": f'text=$({true} "$@" 2>&1); printf %s "$text" | head -c $((${{#text}} / 2))',
        "empty": "exit 0",
        "flood": "head -c 52428800 /dev/zero | tr '\\0' 'A'",
    }[how]
    return f"#!/bin/sh\n{body}\n"


def commands(layout: Layout, machine: MachineLayout, texts_folder: Path, launchctl: Sequence[str] = ()) -> dict[str, str]:
    """The script of every command, by name.

    ``launchctl``: the program that hands its arguments to the Mac's first process; none where that runs no LaunchDaemons.
    """
    here = shlex.quote(str(texts_folder))

    def script(body: str) -> str:
        return f'#!/bin/sh\nhere={here}\nshow() {{ exec /bin/cat "$@"; }}\n{body}'

    devices = [device.name for device in rdma.devices(layout, machine)]
    change = f'exec {shlex.join(launchctl)} --network "$name" "$@"' if launchctl else _NO_CHANGES
    return {
        "system_profiler": script(_SYSTEM_PROFILER),
        "networksetup": script(_networksetup(network.services(machine), change)),
        "ifconfig": script(_ifconfig(list(network.ifconfig(machine)), change)),
        "netstat": script(_NETSTAT),
        "route": script(_route(layout, machine)),
        "vm_stat": script(
            '[ $# -eq 0 ] || { echo "Usage: vm_stat [[-c count] interval]" >&2; exit 1; }\nshow "$here/vm_stat"\n'
        ),
        "macmon": script(_MACMON),
        "ibv_devices": script('show "$here/ibv_devices"\n'),
        "ibv_devinfo": script(_ibv_devinfo(devices)),
        "rdma_ctl": script(_RDMA_CTL),
        "sysctl": script(_sysctl(hardware.sysctl(machine.machine, machine.boots), machine.boots)),
        "caffeinate": script(_CAFFEINATE),
        "pmset": script(_PMSET),
        "fdesetup": script(_FDESETUP),
        "socketfilterfw": script(_SOCKETFILTERFW),
        "sntp": script(_SNTP),
        "df": script(_DF),
        "sw_vers": script(_sw_vers(hardware.sw_vers(machine.machine))),
        "launchctl": script(f'exec {shlex.join(launchctl)} "$@"\n' if launchctl else _NO_LAUNCHCTL),
    }


_NO_CHANGES = """\
echo "$name: the network of recorded Macs with loopback addresses cannot be changed" >&2
exit 1
"""

_NO_LAUNCHCTL = """\
echo "launchctl: recorded Macs with loopback addresses run no LaunchDaemons" >&2
exit 1
"""


_CAFFEINATE = """\
[ -x /usr/bin/caffeinate ] && exec /usr/bin/caffeinate "$@"
pid=
while [ $# -gt 0 ]; do
  case $1 in
    -w) pid=$2; shift ;;
    -t) shift ;;
    -*[!dimsu]*) echo "usage: caffeinate [-disu] [-t timeout] [-w Process ID] [command arguments...]" >&2; exit 64 ;;
    -*) ;;
    *) exec "$@" ;;
  esac
  shift
done
[ -n "$pid" ] || exec sleep 2147483647
PATH=$PATH:/usr/bin:/bin exec tail -s 5 --pid="$pid" -f /dev/null
"""


# Settings of wall power are files beside the texts, so they survive a restart.
_PMSET = """\
sleep=1 autorestart=0
[ -f "$here/pmset.sleep" ] && read -r sleep < "$here/pmset.sleep"
[ -f "$here/pmset.autorestart" ] && read -r autorestart < "$here/pmset.autorestart"
settings() {
  echo "$1"
  echo " Sleep On Power Button 1"
  echo " autorestart          $autorestart"
  echo " powernap             1"
  echo " standby              0"
  echo " hibernatefile        /var/vm/sleepimage"
  echo " disksleep            10"
  echo " sleep                $sleep"
  echo " hibernatemode        0"
  echo " ttyskeepawake        1"
  echo " displaysleep         10"
  echo " tcpkeepalive         1"
  echo " womp                 1"
  exit 0
}
case "$*" in
  -g) echo "System-wide power settings:"; settings "Currently in use:" ;;
  "-g custom") settings "AC Power:" ;;
  "-g therm")
    echo "Note: No thermal warning level has been recorded"
    echo "Note: No performance warning level has been recorded"
    exit 0 ;;
  "-c sleep "*|"-c autorestart "[01])
    case $3 in ""|*[!0-9]*) ;; *) echo "$3" > "$here/pmset.$2"; exit $? ;; esac ;;
esac
echo "pmset: this recorded Mac supports only -g, -g custom, -g therm, and -c with sleep MINUTES or autorestart 0|1" >&2
exit 64
"""


_FDESETUP = """\
[ "$*" = status ] && { echo "FileVault is Off."; exit 0; }
echo "fdesetup: this recorded Mac supports only fdesetup status" >&2
exit 1
"""


# The applications in the firewall's list are lines of a file: permitted or blocked, and the path.
_SOCKETFILTERFW = """\
state=0 apps=$here/firewall.apps known=
[ -f "$here/firewall.state" ] && read -r state < "$here/firewall.state"
[ -f "$apps" ] || : > "$apps"
while read -r how path; do [ "$path" = "$2" ] && known=$how; done < "$apps"
keep() {
  kept=$(while read -r how path; do [ "$path" = "$1" ] || echo "$how $path"; done < "$apps")
  { [ -z "$kept" ] || echo "$kept"; [ -z "$2" ] || echo "$2 $1"; } > "$apps"
  exit 0
}
case $1 in
  --setglobalstate)
    case $2 in on) state=1 ;; off) state=0 ;; *) exit 1 ;; esac
    echo "$state" > "$here/firewall.state" ;;
  --getglobalstate) ;;
  --getblockall) echo "Firewall has block all state set to disabled."; exit 0 ;;
  --add) keep "$2" "${known:-permitted}" ;;
  --getappblocked|--remove|--blockapp|--unblockapp)
    [ -n "$known" ] || { echo "The application is not part of the firewall "; exit 0; }
    case $1 in
      --remove) keep "$2" "" ;;
      --blockapp) keep "$2" blocked ;;
      --unblockapp) keep "$2" permitted ;;
    esac
    echo "Incoming connection to $2 is $known "
    exit 0 ;;
  *) echo "socketfilterfw: this recorded Mac does not have the option $1" >&2; exit 1 ;;
esac
if [ "$state" = 0 ]; then echo "Firewall is disabled. (State = 0)"; else echo "Firewall is enabled. (State = 1)"; fi
"""


_SNTP = """\
[ $# -eq 1 ] || { echo "sntp: this recorded Mac supports only sntp HOST" >&2; exit 64; }
echo "+0.000312 +/- 0.011204 $1 17.253.4.125"
"""


_DF = """\
[ "$*" = "-Pk /" ] || PATH=/usr/bin:/bin exec df "$@"
echo "Filesystem     1024-blocks     Used Available Capacity  Mounted on"
echo "/dev/disk3s1s1   971350180 12185156 702345678     2%    /"
"""


_SYSTEM_PROFILER = """\
type= json=
while [ $# -gt 0 ]; do
  case $1 in
    -json) json=1 ;;
    -detailLevel|-timeout) shift ;;
    SPThunderboltDataType|SPHardwareDataType|SPDisplaysDataType) type=$1 ;;
    -*) echo "system_profiler: unrecognized option \\`$1'" >&2; exit 64 ;;
    *) echo "system_profiler: Invalid data type: $1" >&2; exit 1 ;;
  esac
  shift
done
[ -n "$type" ] || { echo "system_profiler: this recorded Mac supports SP{Thunderbolt,Hardware,Displays}DataType" >&2; exit 1; }
[ -n "$json" ] || { echo "system_profiler: this recorded Mac prints JSON only (-json)" >&2; exit 1; }
show "$here/$type.json"
"""


def _networksetup(services: Sequence[Service], change: str) -> str:
    enabled = "|".join(shlex.quote(service.name) for service in services if service.enabled)
    disabled = "|".join(shlex.quote(service.name) for service in services if not service.enabled)
    return f"""\
name=networksetup
case $1 in
  -listallhardwareports) show "$here/hardwareports" ;;
  -listnetworkserviceorder) show "$here/serviceorder" ;;
  -listallnetworkservices) show "$here/services" ;;
  -getnetworkserviceenabled)
    case $2 in
      {enabled or "''"}) echo Enabled; exit 0 ;;
      {disabled or "''"}) echo Disabled; exit 0 ;;
    esac
    echo "$2 is not a recognized network service."
    echo "** Error: Unable to find item in network database."
    exit 8 ;;
  -getinfo)
    [ -f "$here/info.$2" ] && show "$here/info.$2"
    echo "$2 is not a recognized network service."
    echo "** Error: The parameters were not valid."
    exit 8 ;;
  {"|".join(sorted(WRITES))}) {change} ;;
esac
echo "** Error: The parameters were not valid." >&2
exit 4
"""


def _ifconfig(names: list[str], change: str) -> str:
    listed = " ".join(names)
    return f"""\
name=ifconfig
case $1 in
  ""|-a) show "$here/ifconfig" ;;
  -l) echo "{listed}"; exit 0 ;;
  -*) echo "ifconfig: illegal option -- ${{1#-}}" >&2; exit 1 ;;
  {"|".join(names)}) [ $# -eq 1 ] && show "$here/ifconfig.$1" ;;
  *) echo "ifconfig: interface $1 does not exist" >&2; exit 1 ;;
esac
case $2 in
  addm|deletem|inet) {change} ;;
esac
echo "ifconfig: this recorded Mac's interfaces cannot be changed" >&2
exit 1
"""


_MACMON = """\
[ "$1" = pipe ] || { echo "macmon: this recorded Mac supports only pipe" >&2; exit 1; }
cat <<'END'
{"all_power":0.65,"ane_power":0.0,"cpu_power":0.64,"ecpu_usage":[2061,0.17],"gpu_power":0.01,"gpu_usage":[503,0.0136],\
"ram_power":0.15,"sys_power":10.5,"temp":{"cpu_temp_avg":23.04,"gpu_temp_avg":29.45},"timestamp":"2026-02-17T19:34:27.942556+00:00"}
END
"""


# Where interfaces are those of a network namespace, the kernel counts what crosses a cable.
_NETSTAT = """\
counted() {
  [ -r /proc/net/dev ] || return 1
  while read -r device in_bytes in_packets in_errors _ _ _ _ _ out_bytes out_packets out_errors _; do
    [ "$device" = "$1:" ] && return 0
  done < /proc/net/dev
  return 1
}
rows() {
  while IFS= read -r line; do
    set -- $line
    [ -z "$only" ] || [ "$1" = "$only" ] || [ "$1" = Name ] || continue
    if [ "$1" != Name ] && counted "$1"; then
      printf '%-11s%-6s%-12s%19s %8s %5s %10s %8s %5s %10s %5s\\n' "$1" "$2" "$3" "$4" \
        "$in_packets" "$in_errors" "$in_bytes" "$out_packets" "$out_errors" "$out_bytes" 0
    else
      echo "$line"
    fi
  done < "$here/netstat"
}
case "$*" in
  -ib|-i\\ -b|-bi|-ibn) only=; rows; exit 0 ;;
  "-ib -I "*|"-I "*" -ib"|"-I "*" -b")
    case $1 in -I) only=$2 ;; *) only=$3 ;; esac
    rows
    exit 0 ;;
esac
echo "netstat: this recorded Mac prints netstat -ib [-I interface]" >&2
exit 1
"""


def _route(layout: Layout, machine: MachineLayout) -> str:
    cases = ""
    default = network.default_route(machine)
    if default is not None:
        gateway = f"net=default mask=default gateway={layout.control_plane.ip} device={default}"
        cases += f"  default) {gateway} flags='<UP,GATEWAY,DONE,STATIC,PRCLONING,GLOBAL>' ;;\n"
    direct = network.routes(machine)
    # The route of a Mac to its own address is the loopback interface.
    own = "|".join(str(address.ip) for address, _ in direct)
    if own:
        cases += f"  {own}) net=$2 mask=255.255.255.255 device=lo0 flags='<UP,HOST,DONE,LLINFO,WASCLONED,LOCAL>' ;;\n"
    for address, device in direct:
        hosts = address.network.hosts() if address.prefix > 24 else None
        octets = ".".join(str(address.ip).split(".")[: address.prefix // 8])
        pattern = "|".join(str(host) for host in hosts) if hosts else f"{octets}.*"
        cases += f"  {pattern}) net={address.network.network_address} mask={address.network.netmask} device={device} ;;\n"
    return f"""\
[ "$1" = -n ] && shift
[ "$1" = get ] && [ $# -eq 2 ] || {{ echo "usage: route [-n] get address" >&2; exit 64; }}
gateway= flags='<UP,DONE,CLONING,STATIC>'
case $2 in
{cases}  127.*) net=127.0.0.0 mask=255.0.0.0 device=lo0 ;;
  *) echo "route: writing to routing socket: not in table" >&2; exit 1 ;;
esac
exec /bin/cat <<END
   route to: $2
destination: $net
       mask: $mask${{gateway:+
    gateway: $gateway}}
  interface: $device
      flags: $flags
 recvpipe  sendpipe  ssthresh  rtt,msec    rttvar  hopcount      mtu     expire
       0         0         0         0         0         0      1500         0
END
"""


def _ibv_devinfo(devices: list[str]) -> str:
    none = rdma.NO_DEVICES_OUTPUT.strip()
    if not devices:
        return f'echo "{none}" >&2\nexit 255\n'
    return f"""\
kind=ibv_devinfo wanted="{" ".join(devices)}"
while [ $# -gt 0 ]; do
  case $1 in
    -v|--verbose) kind=ibv_devinfo-v ;;
    -d)
      case $2 in
        {"|".join(devices)}) wanted=$2; shift ;;
        *) echo "IB device '$2' wasn't found" >&2; exit 255 ;;
      esac ;;
    -l) echo "{len(devices)} HCAs found:"; for name in $wanted; do printf '\\t%s\\n' "$name"; done; exit 0 ;;
    *) echo "Usage: ibv_devinfo [-d device] [-v] [-l]" >&2; exit 255 ;;
  esac
  shift
done
set --
for name in $wanted; do set -- "$@" "$here/$kind.$name"; done
show "$@"
"""


_RDMA_CTL = """\
case "$*" in
  status) show "$here/rdma_ctl" ;;
  enable|disable) echo "rdma_ctl: this command can only be run in Recovery" >&2; exit 1 ;;
esac
echo "usage: rdma_ctl enable | disable | status" >&2
exit 64
"""


WIRED_LIMIT = "iogpu.wired_limit_mb"


def _sysctl(values: Mapping[str, str], boots: int) -> str:
    # The settings are lost when the Mac restarts.
    cases = "".join(f"    {key}) value={shlex.quote(value)} ;;\n" for key, value in values.items())
    return f"""\
names= bare=
for word in "$@"; do
  case $word in
    -n) bare=1 ;;
    -a) names="{" ".join(values)}" ;;
    -*) echo "sysctl: illegal option -- ${{word#-}}" >&2; exit 1 ;;
    *) names="$names $word" ;;
  esac
done
[ -n "$names" ] || {{ echo "usage: sysctl [-n] name ..." >&2; exit 1; }}
code=0
set=$here/sysctl.set boot= limit=
[ -f "$set" ] && read -r boot limit < "$set"
for name in $names; do
  case $name in
    {WIRED_LIMIT}=*[!0-9]*|{WIRED_LIMIT}=) echo "sysctl: invalid integer: '${{name#*=}}'" >&2; code=1; continue ;;
    {WIRED_LIMIT}=*) echo "{boots} ${{name#*=}}" > "$set" || exit 1; echo "{WIRED_LIMIT}: 0 -> ${{name#*=}}"; continue ;;
{cases}    *) echo "sysctl: unknown oid '$name'" >&2; code=1; continue ;;
  esac
  [ "$name $boot" = "{WIRED_LIMIT} {boots}" ] && value=$limit
  if [ -n "$bare" ]; then echo "$value"; else echo "$name: $value"; fi
done
exit $code
"""


def _sw_vers(values: Mapping[str, str]) -> str:
    lines = "".join(f"printf '%s:\\t\\t%s\\n' {name} {shlex.quote(value)}\n" for name, value in values.items())
    cases = "".join(
        f"  -{name[0].lower()}{name[1:]}|--{name[0].lower()}{name[1:]}) echo {shlex.quote(value)}; exit 0 ;;\n"
        for name, value in values.items()
    )
    return f"""\
case $1 in
  "") ;;
{cases}  *) echo "usage: sw_vers [--help|--productName|--productVersion|--productVersionExtra|--buildVersion]" >&2; exit 1 ;;
esac
{lines}"""
