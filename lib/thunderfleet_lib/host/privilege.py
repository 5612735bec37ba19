"""Protects root from programs and files that another user can change: folders for commands, the environment, files.

`sudo` on a Mac keeps the caller's PATH and home folder. So programs that run as root call ``take_own_environment`` first, and
call ``distrust`` before they run or copy a file, or write into a folder.
"""

import os
import pwd
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = 0
ROOT_FOLDERS = ("/Library/Apple/usr/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin")
"""Where root searches for commands. System Integrity Protection covers the first; a recorded Mac has its commands there."""

_KEPT = frozenset(
    (
        *("LANG", "TERM", "TZ", "COLUMNS", "NO_COLOR", "SUDO_UID", "SUDO_GID", "SUDO_USER"),
        *("http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
        # Where downloads come from. What is downloaded is compared with hashes.
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "GOPROXY", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_CERT"),
        # Folders that are checked before they are used.
        *("KUBEBUILDER_ASSETS", "THUNDERFLEET_CACHE"),
    )
)


def root_environment(given: Mapping[str, str]) -> dict[str, str]:
    """What root takes from the environment of its caller, with commands and the home folder of root."""
    kept = {name: value for name, value in given.items() if name in _KEPT or name.startswith("LC_")}
    return {**kept, "PATH": os.pathsep.join(ROOT_FOLDERS), "HOME": pwd.getpwuid(ROOT).pw_dir}


def take_own_environment() -> None:
    """If this process is root: use ``root_environment`` from now on, and let no other user write new files."""
    if os.geteuid() != ROOT:
        return
    own = root_environment(os.environ)
    os.environ.clear()
    os.environ.update(own)
    os.umask(0o022)


def distrust(paths: Iterable[Path]) -> str | None:
    """Why a user other than root could change what is at ``paths``, and the command that fixes it; None if no other user can.

    Checks each path, the folders above, and what links lead to. A path that does not exist is as safe as its folder.
    """
    for path in paths:
        for one in _on_the_way(path):
            if (reason := _changeable(one)) is not None:
                return reason
    return None


def _on_the_way(path: Path) -> list[Path]:
    """A path and the folders above it, as they are named and where they are; the highest first."""
    named = Path(os.path.abspath(path))
    real = Path(os.path.realpath(path))
    return list(dict.fromkeys((*reversed(real.parents), real, *reversed(named.parents), named)))


def _changeable(path: Path) -> str | None:
    try:
        about = path.lstat()
    except FileNotFoundError:
        return None
    if about.st_uid != ROOT:
        return f"{path} belongs to user {about.st_uid}, not to root: `sudo chown root '{path}'`, after you have checked it"
    # The mode of a link has no meaning. In a sticky folder, only its owner can replace a file.
    if about.st_mode & 0o022 and not about.st_mode & stat.S_ISVTX and not stat.S_ISLNK(about.st_mode):
        return f"users other than root can write {path}: `sudo chmod go-w '{path}'`, after you have checked it"
    return None
