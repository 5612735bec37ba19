"""Finds and signals processes on this machine: from ``/proc`` on Linux, from ``ps`` on macOS."""

import os
import select
import signal
import time

MARKER_VARIABLE = "CONTAINER_SANDBOX_MOUNT_POINT"

PS_SECONDS = 10.0


def marked(marker: str, group: int = 0) -> list[int]:
    """The pids of all live processes that have ``marker`` (a sandbox folder) in their environment.

    macOS shows no user the environment of an Apple binary, such as ``sh``. There, the members of the process group ``group``
    and the descendants of all these processes belong to them too.
    """
    wanted = f"{MARKER_VARIABLE}={marker}".encode()
    found = []
    if os.path.exists("/proc/self/environ"):
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                with open(f"/proc/{entry}/environ", "rb") as file:
                    if wanted in file.read().split(b"\0") and not _zombie(int(entry)):
                        found.append(int(entry))
            except OSError:
                continue
        return found
    return marked_in(ask_ps(["-axEww", "-o", "pid=,ppid=,pgid=,stat=,command="]), wanted, group)


def marked_in(output: bytes, wanted: bytes, group: int = 0) -> list[int]:
    """The pids in the output of ``ps -axEww -o pid=,ppid=,pgid=,stat=,command=``.

    ``ps`` prints the environment after the command, for the caller's own processes, or for root those of all users. It never
    prints the environment of Apple binaries.
    """
    parents: dict[int, int] = {}
    found: set[int] = set()
    for line in output.splitlines():
        fields = line.split(None, 4)
        if len(fields) < 5 or not b"".join(fields[:3]).isdigit() or fields[3].startswith(b"Z"):
            continue
        pid = int(fields[0])
        parents[pid] = int(fields[1])
        if (group and int(fields[2]) == group) or b" " + wanted + b" " in b" " + fields[4] + b" ":
            found.add(pid)
    fresh = found
    while fresh:
        fresh = {pid for pid, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return sorted(found)


def of_user(user: int) -> list[int]:
    """The pids of all live processes whose real, effective or saved user is ``user``; none if they cannot be listed."""
    try:
        return listed_of_user(user)
    except TimeoutError:
        return []


def listed_of_user(user: int) -> list[int]:
    """As ``of_user``. Raises TimeoutError if the system does not list its processes in time."""
    found = []
    if os.path.exists("/proc/self/status"):
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                with open(f"/proc/{entry}/status", "rb") as file:
                    lines = file.read().splitlines()
            except OSError:
                continue
            users = next((line.split()[1:4] for line in lines if line.startswith(b"Uid:")), [])
            if str(user).encode() in users and not _zombie(int(entry)):
                found.append(int(entry))
        return found
    output = ask_ps(["-axo", "pid=,stat=,uid=,ruid=,svuid="])
    if not output:
        raise TimeoutError(f"ps did not list the processes within {PS_SECONDS:g} s")
    return users_in(output, user)


def users_in(output: bytes, user: int) -> list[int]:
    """The pids of ``user`` in the output of ``ps -axo pid=,stat=,uid=,ruid=,svuid=``."""
    rows = [line.split() for line in output.splitlines()]
    wanted = str(user).encode()
    return [int(row[0]) for row in rows if len(row) == 5 and wanted in row[2:] and not row[1].startswith(b"Z")]


def ask_ps(arguments: list[str]) -> bytes:
    """The output of ``ps``; empty if it takes longer than ``PS_SECONDS``."""
    reader, writer = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, writer, 1)]
    child = os.posix_spawn("/bin/ps", ["ps", *arguments], {"LC_ALL": "C"}, file_actions=actions)
    os.close(writer)
    output, limit = b"", time.monotonic() + PS_SECONDS
    try:
        while True:
            if not select.select([reader], [], [], max(0.0, limit - time.monotonic()))[0]:
                os.kill(child, signal.SIGKILL)
                output = b""
                break
            data = os.read(reader, 65536)
            if not data:
                break
            output += data
    finally:
        os.close(reader)
    # Another reaper of this process's children may have been faster. (Importing contextlib would cost memory.)
    try:
        os.waitpid(child, 0)
    except ChildProcessError:
        return output
    return output


def birth(pid: int) -> str:
    """When a process started, as text; together with the pid it identifies one process forever. Empty: no such process."""
    if os.path.exists("/proc/self/stat"):
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                ticks = file.read().rpartition(b")")[2].split()[19].decode()
            # Ticks count from boot.
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                return f"{file.read().strip()} {ticks}"
        except (OSError, IndexError):
            return ""
    return ask_ps(["-o", "lstart=", "-p", str(pid)]).decode("utf-8", "replace").strip()


def _zombie(pid: int) -> bool:
    return _state_and_group(pid)[0] in (b"Z", b"X")


def _state_and_group(pid: int) -> tuple[bytes, int]:
    """A process's state letter and process group from Linux's /proc; ``X`` if it does not exist."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return fields[0], int(fields[2])
    except (OSError, IndexError):
        return b"X", 0


def group_lives(group: int) -> bool:
    """Whether any process of the group runs. On Linux, zombies do not count."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        # macOS returns this for a group that has only zombies left.
        return os.path.exists("/proc/self/stat")
    if not os.path.exists("/proc/self/stat"):
        return True
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            state, its = _state_and_group(int(entry))
            if its == group and state not in (b"Z", b"X"):
                return True
    return False


def signal_all(pids: list[int], number: int) -> None:
    """Signals each process that still exists."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            continue
