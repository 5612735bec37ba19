"""Contents of the image for Linux: packages, programs, user and environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thunderfleet_image.tree import Entry, Tree, directory, file, link

Json = dict[str, Any]

SUITE = "trixie"
"""Release of Debian. Its security updates have the suite ``SUITE-security``."""
PYTHON = "3.13"
"""Version of Python in ``SUITE``."""
SITE_PACKAGES = f"usr/local/lib/python{PYTHON}/dist-packages"
"""Folder in which Debian's Python looks for packages from other sources."""
PROGRAMS = {
    "thunderfleet-operator": "thunderfleet_operator.cli:main",
    "thunderfleet-router": "thunderfleet_router.cli:main",
}
"""Programs of the image to their functions."""
USER = 65532
"""Neither root nor a user of any host."""
MADE = 1580601600
"""Time of all files, in seconds since 1970: the same as hatchling sets for files of wheels."""

DEBIAN = (
    "base-files",
    "ca-certificates",
    "libbz2-1.0",
    "libc6",
    "libexpat1",
    "libffi8",
    "libgcc-s1",
    "liblzma5",
    f"libpython{PYTHON}-minimal",
    f"libpython{PYTHON}-stdlib",
    "libssl3t64",
    "libstdc++6",
    "libuuid1",
    "libzstd1",
    "media-types",
    "netbase",
    f"python{PYTHON}-minimal",
    "tzdata",
    "zlib1g",
)
"""Debian's packages. The image has no shell: nothing in it needs one."""


@dataclass(frozen=True)
class Platform:
    """A platform with its names in OCI, Debian and Python."""

    architecture: str
    machine: str
    os: str = "linux"

    @property
    def name(self) -> str:
        return f"{self.os}/{self.architecture}"


PLATFORMS = (Platform("amd64", "x86_64"), Platform("arm64", "aarch64"))
"""Platforms of Linux."""
MAC = Platform("arm64", "arm64", "darwin")


def wheel_tags(platform: Platform) -> list[str]:
    """Platform tags of compatible wheels, best first: the C library of trixie is 2.41."""
    return [f"manylinux_2_{minor}_{platform.machine}" for minor in range(41, 16, -1)] + [f"manylinux2014_{platform.machine}"]


def accounts(certificates: bytes) -> Tree:
    """The files that the scripts of Debian's packages would create: accounts, the bundle of CA certificates, ``python3``."""
    passwd = f"root:x:0:0:root:/root:/usr/sbin/nologin\nthunderfleet:x:{USER}:{USER}::/home/thunderfleet:/usr/sbin/nologin\n"
    return {
        "etc/passwd": file(passwd.encode()),
        "etc/group": file(f"root:x:0:\nthunderfleet:x:{USER}:\n".encode()),
        "etc/nsswitch.conf": file(b"passwd: files\ngroup: files\nhosts: files dns\n"),
        "etc/ssl/certs/ca-certificates.crt": file(certificates),
        "home/thunderfleet": Entry("directory", 0o755, owner=USER),
        "tmp": directory(0o1777),
        "usr/bin/python3": link(f"python{PYTHON}"),
    }


def programs() -> Tree:
    """The scripts that start the programs."""
    made: Tree = {}
    for name, target in PROGRAMS.items():
        module, _, function = target.partition(":")
        text = f"#!/usr/bin/python{PYTHON}\nimport sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n"
        made[f"usr/bin/{name}"] = file(text.encode(), 0o755)
    return made


def description(text: str, version: str, revision: str) -> dict[str, str]:
    """The labels of an image. ``revision``: the git commit; empty if it is unknown."""
    labels = {
        "org.opencontainers.image.title": "thunderfleet",
        "org.opencontainers.image.description": text,
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.version": version,
    }
    return labels | ({"org.opencontainers.image.revision": revision} if revision else {})


def configuration(platform: Platform, version: str, revision: str, created: str, diff_ids: list[str]) -> Json:
    """The image configuration (OCI image specification 1.1). Pods name the program as their command.

    Args:
        created: RFC 3339 time.
        diff_ids: digests of the layers before compression, lowest first.
    """
    return {
        "architecture": platform.architecture,
        "os": platform.os,
        "created": created,
        "config": {
            "User": f"{USER}:{USER}",
            "Env": [
                "PATH=/usr/local/bin:/usr/bin",
                "HOME=/home/thunderfleet",
                "LANG=C.UTF-8",
                "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt",
                # The root file system is read-only.
                "PYTHONDONTWRITEBYTECODE=1",
                "PYTHONUNBUFFERED=1",
            ],
            "Cmd": ["thunderfleet-operator", "--help"],
            "WorkingDir": "/",
            "Labels": description("Operator and router of Thunderfleet", version, revision),
        },
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
        "history": [
            {"created": created, "created_by": f"Debian {SUITE}: Python {PYTHON}"},
            {"created": created, "created_by": "requirements.txt of the image"},
            {"created": created, "created_by": f"thunderfleet {version}"},
        ],
    }
