"""The suite's cluster: fully connected Macs with JACCL, small disks that can fill up, and clocks that can be set.

Every machine gets its own /etc, whose ld.so.preload names a library that adds the file /etc/chaos-clock (seconds, a C long)
to the wall clock. It reaches every dynamically linked program that starts on the machine afterwards; file times stay those
of the kernel. Where there is no C compiler, clocks cannot be set.
"""

import contextlib
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml
from thunderfleet_localcluster.client.cluster import Cluster, ClusterMachine
from thunderfleet_localcluster.errors import LocalClusterError

from tests.support.line import COMMAND_SECONDS, MEASURED, Line, on_fleet

MAC_DISK, ETCD_DISK = "128m", "320m"
"""Sizes of the disks; etcd allocates 64 MiB at a time for its log."""
FILLER = "chaos-filler"
COMPILE_SECONDS = 60

CLOCK = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long *ahead;

__attribute__((constructor)) static void map_file(void) {
  int file = open("/etc/chaos-clock", O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  void *found = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (found != MAP_FAILED) ahead = found;
}

int clock_gettime(clockid_t which, struct timespec *now) {
  int code = syscall(SYS_clock_gettime, which, now);
  if (code == 0 && ahead && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) now->tv_sec += *ahead;
  return code;
}

time_t time(time_t *seconds) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (seconds) *seconds = now.tv_sec;
  return now.tv_sec;
}

int gettimeofday(struct timeval *restrict when, void *restrict zone) {
  struct timespec now;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &now);
  when->tv_sec = now.tv_sec;
  when->tv_usec = now.tv_nsec / 1000;
  return 0;
}
"""

# Run on a machine that has no kubelet at the moment. The argument is the folder with the library.
OWN_ETC = """
set -e
etc=$(mktemp -d)
mount -t tmpfs -o size=32m,mode=0755 tmpfs "$etc"
cp -a /etc/. "$etc"/
cp "$1" "$etc"/chaos-clock.so
head -c 8 /dev/zero > "$etc"/chaos-clock
chmod 0644 "$etc"/chaos-clock "$etc"/chaos-clock.so
echo /etc/chaos-clock.so > "$etc"/ld.so.preload
mount --bind "$etc" /etc
umount "$etc"
rmdir "$etc"
"""
# Run on a machine, or where etcd runs: the folder gets its own small disk, with its present content.
SMALL_DISK = """
set -e
disk=$(mktemp -d)
mount -t tmpfs -o size="$2",mode=0755 tmpfs "$disk"
cp -a "$1"/. "$disk"/
mount --bind "$disk" "$1"
umount "$disk"
rmdir "$disk"
"""
FILL = 'cat /dev/zero > "$1" 2>/dev/null; test -s "$1"'
SET_CLOCK = "import sys; open('/etc/chaos-clock', 'r+b').write(bytes.fromhex(sys.argv[1]))"


def text(macs: int) -> str:
    """The fleet file: every Mac has a cable to every other."""
    pairs = [(a, b) for a in range(1, macs + 1) for b in range(a + 1, macs + 1)]
    return "\n".join(
        [
            "machines:",
            "  - {name: linux-1, kind: linux}",
            "  - {name: linux-2, kind: linux}",
            *(f"  - {{name: mac-{n}, model: Mac Studio (M3 Ultra), memory: 96 GB, rdma: true, jaccl: recorded}}"
              for n in range(1, macs + 1)),
            "cables:",
            # Each end takes the next port of its Mac.
            *(f'  - {{a: "mac-{a}:{b - 1}", b: "mac-{b}:{a}"}}' for a, b in pairs),
        ]
    )  # fmt: skip


@contextlib.contextmanager
def cluster(macs: int, measured: bool = True) -> Iterator[Line]:
    """A cluster with the chart and the model; ``measured``: its agents run benchmarks. Raises LocalClusterError."""
    values = MEASURED if measured else ()
    with on_fleet(text(macs), "chaos", "", *values, prepare=prepare, audit=True) as line:
        yield line


def prepare(found: Cluster) -> None:
    """Gives every machine its own clock, every Mac and etcd a small disk. Raises LocalClusterError."""
    with tempfile.TemporaryDirectory(prefix="thunderfleet-chaos-") as folder:
        library = compiled(Path(folder))
        for machine in found.machines.values():
            machine.stop_kubelet()
            if library:
                _shell(machine, OWN_ETC, str(library))
            if machine.kind == "mac":
                _shell(machine, SMALL_DISK, str(machine.folder / "kubelet"), MAC_DISK)
                file = machine.folder / "kubelet.yaml"
                # The thresholds of a real Mac, with less patience.
                settings = {**yaml.safe_load(file.read_text()), "evictionHard": {}, "evictionPressureTransitionSeconds": 3}
                file.write_text(yaml.safe_dump(settings))
            machine.start_kubelet()
    found.component("etcd", "off")
    _beside_etcd(found, SMALL_DISK, str(etcd_folder(found)), ETCD_DISK)
    found.component("etcd", "on")


def compiled(folder: Path) -> Path | None:
    """The library that sets the clock; None without a C compiler. Raises LocalClusterError."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library = folder / "clock.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-x", "c", "-o", str(library), "-"]
    done = subprocess.run(command, input=CLOCK, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
    if done.returncode:
        raise LocalClusterError(f"{compiler} cannot build the library that sets clocks: {done.stderr}")
    library.chmod(0o644)
    return library


def set_clock(machine: ClusterMachine, ahead: int) -> bool:
    """Sets a machine's clock ``ahead`` seconds of the real one; False if that is impossible here."""
    return machine.run([sys.executable, "-S", "-c", SET_CLOCK, struct.pack("l", ahead).hex()]).returncode == 0


def fill_mac(machine: ClusterMachine) -> None:
    """Fills the disk of a Mac's kubelet. Raises LocalClusterError."""
    _shell(machine, FILL, str(machine.folder / "kubelet" / FILLER))


def empty_mac(machine: ClusterMachine) -> None:
    """Makes room again."""
    _shell(machine, 'rm -f "$1"', str(machine.folder / "kubelet" / FILLER))


def fill_etcd(found: Cluster) -> None:
    """Fills the disk of etcd. Raises LocalClusterError."""
    _beside_etcd(found, FILL, str(etcd_folder(found) / FILLER))


def empty_etcd(found: Cluster) -> None:
    """Makes room again, and starts etcd if it has ended."""
    _beside_etcd(found, 'rm -f "$1"', str(etcd_folder(found) / FILLER))
    if not all(item["pid"] for item in found.status()["components"] if item["name"] == "etcd"):
        found.component("etcd", "off")
        found.component("etcd", "on")


def etcd_folder(found: Cluster) -> Path:
    """Where etcd keeps its data."""
    return found.folder.control_plane / "etcd"


def _shell(machine: ClusterMachine, script: str, *arguments: str) -> None:
    done = machine.run(["sh", "-c", script, "sh", *arguments])
    if done.returncode:
        raise LocalClusterError(f"{machine.name}: {script.strip()} failed: {done.stderr}")


def _beside_etcd(found: Cluster, script: str, *arguments: str) -> None:
    """Runs a script where etcd sees the same mounts."""
    user = () if os.geteuid() == 0 else ("-U", "--preserve-credentials")
    command = ["nsenter", "-t", str(found.pid), "-m", *user, "sh", "-c", script, "sh", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    if done.returncode:
        raise LocalClusterError(f"beside etcd: {script.strip()} failed: {done.stderr}")
