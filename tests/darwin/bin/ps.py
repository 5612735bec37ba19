#!python
"""``ps`` as macOS has it, for the options that our programs use; reads a Linux /proc in another place.

The environment (``-E``) of an Apple binary is not shown, not even to root (``sysctl_procargsx`` in XNU: ``cs_restricted``).
Here everything in the system's folders counts as one, except Python.
"""

import os
import sys
import time
from collections.abc import Sequence

PROC = "@PROC@"
APPLE = ("/usr/bin/", "/bin/", "/usr/sbin/", "/sbin/")


def read(pid: int, name: str) -> bytes:
    """A file of a process; empty if there is none."""
    try:
        with open(f"{PROC}/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def is_apple(pid: int) -> bool:
    """Whether a process runs a program of the system."""
    try:
        path = os.readlink(f"{PROC}/{pid}/exe")
    except OSError:
        return True
    return path.startswith(APPLE) and not os.path.basename(path).startswith("python")


class Process:
    """A process, read once."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        head, _, rest = read(pid, "stat").rpartition(b")")
        self.name, self.fields = head.partition(b"(")[2], rest.split()

    @property
    def exists(self) -> bool:
        """Whether it could be read."""
        return len(self.fields) > 20 and self.fields[0] != b"X"

    def column(self, name: str, environment: bool) -> str:
        """What ``-o name=`` shows."""
        if name in ("command", "args"):
            return self.command(environment)
        if name == "lstart":
            return self.start()
        if name == "stat":
            return self.fields[0].decode().translate({ord("D"): "U", ord("I"): "S"})
        if name in ("uid", "ruid", "svuid"):
            return self.user({"ruid": 0, "uid": 1, "svuid": 2}[name])
        if name == "rss":
            return str(int(self.fields[21]) * os.sysconf("SC_PAGE_SIZE") // 1024)
        if name == "time":
            minutes, seconds = divmod((int(self.fields[11]) + int(self.fields[12])) / os.sysconf("SC_CLK_TCK"), 60)
            return f"{int(minutes)}:{seconds:05.2f}"
        if name == "pid":
            return str(self.pid)
        return self.fields[{"ppid": 1, "pgid": 2}[name]].decode()

    def user(self, index: int) -> str:
        """The real, effective or saved user."""
        line = next((line for line in read(self.pid, "status").splitlines() if line.startswith(b"Uid:")), b"Uid: 0 0 0")
        return line.split()[1 + index].decode()

    def command(self, environment: bool) -> str:
        """The command line, and the environment after it."""
        if self.fields[0] == b"Z":
            return f"({self.name.decode('utf-8', 'replace')})"
        words = read(self.pid, "cmdline").split(b"\0")[:-1] or [b"(" + self.name + b")"]
        if environment and not is_apple(self.pid):
            words += read(self.pid, "environ").split(b"\0")[:-1]
        # strvis with VIS_TAB and VIS_NL: one line for each process.
        line = b" ".join(words).replace(b"\n", b"\\012").replace(b"\t", b"\\011")
        return line.decode("utf-8", "surrogateescape")

    def start(self) -> str:
        """When it started, to the second."""
        with open(f"{PROC}/stat") as file:
            boot = next(int(line.split()[1]) for line in file if line.startswith("btime"))
        return time.strftime("%a %b %e %H:%M:%S %Y", time.localtime(boot + int(self.fields[19]) // os.sysconf("SC_CLK_TCK")))


def parse(arguments: Sequence[str]) -> tuple[list[str], list[int] | None, bool]:
    """Columns, pids (None: all) and whether the environment is shown."""
    columns: list[str] = []
    pids: list[int] | None = []
    environment = False
    words = list(arguments)
    while words:
        letters = words.pop(0).removeprefix("-")
        for index, letter in enumerate(letters):
            if letter in "op":
                value = letters[index + 1 :] or words.pop(0)
                if letter == "p":
                    pids = [int(part) for part in value.split(",")]
                else:
                    columns += [part.removesuffix("=") for part in value.split(",")]
                break
            environment = environment or letter == "E"
            pids = None if letter in "aAx" else pids
            if letter not in "aAxEw":
                sys.exit(f"ps: illegal option -- {letter}")
    return columns, pids, environment


def main() -> int:
    """Prints a line for each process, without headers. Returns 1 if there is none."""
    columns, pids, environment = parse(sys.argv[1:])
    wanted = sorted(int(name) for name in os.listdir(PROC) if name.isdigit()) if pids is None else pids
    found = [process for process in map(Process, wanted) if process.exists]
    for process in found:
        line = " ".join(process.column(name, environment) for name in columns) + "\n"
        sys.stdout.buffer.write(line.encode("utf-8", "surrogateescape"))
    return 0 if found else 1


sys.exit(main())
