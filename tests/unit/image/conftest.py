"""A tiny checkout: Debian packages and wheels of a few files, made here, so that the image is built without a registry."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from thunderfleet_image.lock import ALL, Package
from thunderfleet_image.recipe import Platform

SECONDS = 60


@dataclass(frozen=True)
class Tiny:
    """A checkout with wheels and Debian packages."""

    checkout: Path
    wheel: Path
    debs: dict[Package, Path]


def make_deb(folder: Path, name: str, files: dict[str, tuple[bytes, int]], architecture: str = ALL) -> tuple[Package, Path]:
    """A Debian package, made by dpkg-deb."""
    if not shutil.which("dpkg-deb"):
        pytest.skip("dpkg-deb is not installed")
    root = folder / name
    (root / "DEBIAN").mkdir(parents=True)
    control = (
        f"Package: {name}\nVersion: 1-1\nArchitecture: {architecture}\nMaintainer: none <none@example.com>\nDescription: tiny\n"
    )
    (root / "DEBIAN" / "control").write_text(control)
    for path, (content, mode) in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
        (root / path).chmod(mode)
    if name == "base":
        (root / "lib").symlink_to("usr/lib")
        os.link(root / "usr/bin/program", root / "usr/bin/same")
    deb = folder / f"{name}.deb"
    command = ["dpkg-deb", "--build", "--root-owner-group", str(root), str(deb)]
    subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)
    return Package(architecture, name, "1-1", hashlib.sha256(deb.read_bytes()).hexdigest()), deb


def make_wheel(folder: Path, name: str, tag: str, files: dict[str, str], scripts: str = "") -> Path:
    """A wheel of version 1.0."""
    info = f"{name}-1.0.dist-info"
    everything = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
        f"{info}/entry_points.txt": scripts,
    }
    lines = []
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-1.0-{tag}.whl"
    with zipfile.ZipFile(path, "w") as made:
        for inside, text in everything.items():
            made.writestr(inside, text)
            hashed = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            lines.append(f"{inside},sha256={hashed},{len(text)}")
        made.writestr(f"{info}/RECORD", "\n".join([*lines, f"{info}/RECORD,,", ""]))
    return path


@pytest.fixture
def tiny(tmp_path: Path) -> Tiny:
    return make_tiny(tmp_path)


def make_tiny(folder: Path) -> Tiny:
    """Writes the checkout, its wheels and its Debian packages into a folder."""
    checkout, wheels = folder / "checkout", folder / "wheels"
    (checkout / "image").mkdir(parents=True)
    (checkout / "LICENSE").write_text("the license\n")
    native = [
        make_wheel(wheels, "fast_part", f"cp313-cp313-manylinux_2_28_{machine}", {"fast_part/it.so": machine})
        for machine in ("x86_64", "aarch64")
    ]
    pure = make_wheel(wheels, "pure", "py3-none-any", {"pure.py": "x = 1\n"}, "[console_scripts]\npure = pure:main\n")
    hashes = {path: f"--hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" for path in (*native, pure)}
    (checkout / "image" / "requirements.txt").write_text(
        f"--no-index\n--find-links {wheels}\nfast-part==1.0 {hashes[native[0]]} {hashes[native[1]]}\npure==1.0 {hashes[pure]}\n"
    )
    wheel = make_wheel(folder / "ours", "thunderfleet", "py3-none-any", {"thunderfleet_operator/cli.py": "def main(): ...\n"})
    base = {
        "usr/bin/program": (b"program", 0o4755),
        "usr/lib/library": (b"library", 0o644),
        "usr/share/man/man1/program.1": (b"manual", 0o644),
        "usr/share/doc/base/changelog": (b"changes", 0o644),
        "usr/share/doc/base/copyright": (b"licensed", 0o644),
    }
    certificates = {
        "usr/share/ca-certificates/mozilla/b.crt": (b"B", 0o644),
        "usr/share/ca-certificates/mozilla/a.crt": (b"A\n", 0o644),
    }
    debs = dict([make_deb(folder, "base", base), make_deb(folder, "ca-certificates", certificates)])
    return Tiny(checkout, wheel, debs)


@pytest.fixture
def arm() -> Platform:
    return Platform("arm64", "aarch64")
