"""Takes away, in namespaces of this process and its children, what macOS does not have.

- No ``/proc``: an empty folder hides it. The commands in ``bin`` read the hidden one. (``/dev/fd``, which macOS has, is a link
  into ``/proc`` on Linux, so that way stays.)
- ``ps``, ``lsof``, ``ipcs`` and ``ipcrm`` are those of ``bin``, at the paths where the programs look for them.
- Of the loopback network only ::1, 127.0.0.1, and those of ``loopback`` are addresses of the machine, as after
  ``ifconfig lo0 alias``; Linux accepts all of 127.0.0.0/8.
- No ``/sys``.
"""

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.darwin import loopback

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
PYTHON = os.path.realpath(sys.executable)
BIN = Path(__file__).resolve().parent / "bin"
IP_SECONDS = 20
# Linux gives the interface 127.0.0.1/8 and ::1 when it comes up. The prefix makes all of 127.0.0.0/8 local addresses.
ADDRESSES = ["127.0.0.1", *loopback.ALIASES]
LOOPBACK = "link set lo up\naddr del 127.0.0.1/8 dev lo\n" + "".join(f"addr add {one}/32 dev lo\n" for one in ADDRESSES)


def enter() -> Path:
    """Enters the namespaces, before any thread starts. Returns the folder in which /proc is now. Raises OSError."""
    uid, gid = os.geteuid(), os.getegid()
    _call("unshare", CLONE_NEWNS | CLONE_NEWNET | (0 if uid == 0 else CLONE_NEWUSER))
    if uid != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    _call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    subprocess.run(["ip", "-batch", "-"], input=LOOPBACK, text=True, check=True, timeout=IP_SECONDS, capture_output=True)
    # The containers' users run the commands too.
    folder = Path(tempfile.mkdtemp(prefix="darwin-"))
    folder.chmod(0o755)
    _call("mount", b"tmpfs", os.fsencode(folder), b"tmpfs", 0, b"size=1m,mode=755")
    proc = folder / "proc"
    proc.mkdir()
    _call("mount", b"/proc", os.fsencode(proc), None, MS_BIND | MS_REC, None)
    for name in ("ps", "lsof", "ipcs"):
        _replace(name, folder, proc)
    _call("mount", b"tmpfs", b"/proc", b"tmpfs", 0, b"size=16k,mode=755")
    Path("/proc/self").mkdir()
    Path("/proc/self/fd").symlink_to(proc / "self/fd")
    _call("mount", b"none", b"/proc", None, MS_REMOUNT | MS_RDONLY, None)
    _call("mount", b"tmpfs", b"/sys", b"tmpfs", MS_RDONLY, b"size=16k,mode=755")
    return proc


def _replace(name: str, folder: Path, proc: Path) -> None:
    """Puts the command of ``bin`` in the place of the system's, if there is one."""
    script = folder / name
    script.write_text((BIN / f"{name}.py").read_text().replace("#!python", f"#!{PYTHON} -IS").replace("@PROC@", str(proc)))
    script.chmod(0o755)
    for place in (f"/usr/bin/{name}", f"/bin/{name}", f"/usr/sbin/{name}"):
        if os.path.exists(place) and not os.path.samefile(place, script):
            _call("mount", os.fsencode(script), place.encode(), None, MS_BIND, None)


def _call(name: str, *arguments: object) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
