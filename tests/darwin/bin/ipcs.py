#!python
"""``ipcs -a`` as macOS prints it."""

import grp
import pwd
import sys

PROC = "@PROC@"
KINDS = (("m", "shm", "shmid", "Shared Memory"), ("s", "sem", "semid", "Semaphores"), ("q", "msg", "msqid", "Message Queues"))


def user(number: str) -> str:
    """A user's name; the number of one without account."""
    try:
        return pwd.getpwuid(int(number)).pw_name
    except KeyError:
        return number


def group(number: str) -> str:
    """A group's name; the number of one without account."""
    try:
        return grp.getgrgid(int(number)).gr_name
    except KeyError:
        return number


def main() -> int:
    """Prints all objects."""
    if sys.argv[1:] != ["-a"]:
        sys.exit("ipcs: these tests ask with -a")
    print("IPC status from <running system> as of Mon Nov 23 09:00:00 PST 2026")
    for kind, file, identifier, title in KINDS:
        print("T     ID     KEY        MODE       OWNER    GROUP  CREATOR   CGROUP")
        print(f"{title}:")
        with open(f"{PROC}/sysvipc/{file}") as table:
            head, *rows = [line.split() for line in table]
        for row in rows:
            one = dict(zip(head, row, strict=False))
            names = (user(one["uid"]), group(one["gid"]), user(one["cuid"]), group(one["cgid"]))
            key = int(one["key"]) & 0xFFFFFFFF
            print(f"{kind} {one[identifier]:>6} 0x{key:08x} --rw-rw-rw- " + " ".join(f"{name:>8}" for name in names))
        print()
    return 0


sys.exit(main())
