"""Debian's packages: versions, downloads, hashes.

apt runs with its own folder and sources, so it needs no root rights and changes nothing on the machine. It checks Debian's
signatures. The mirror is ``DEBIAN_MIRROR``, or else the mirror of the machine.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from thunderfleet_image.errors import ImageError
from thunderfleet_image.lock import ALL, Package
from thunderfleet_image.recipe import SUITE

MIRROR = "DEBIAN_MIRROR"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
UPDATE_SECONDS = 300.0
DOWNLOAD_SECONDS = 300.0
ASK_SECONDS = 60.0


class Apt:
    """apt in ``folder`` for ``architectures``, as Debian names them."""

    def __init__(self, folder: Path, architectures: Sequence[str]) -> None:
        self.folder = folder
        self.architectures = architectures
        self.config = folder / "apt.conf"

    def update(self) -> None:
        """Reads Debian's current list of packages.

        Raises:
            ImageError: there is no mirror, or it cannot be reached.
        """
        for name in ("etc/apt.conf.d", "etc/preferences.d", "state/lists/partial", "cache/archives/partial"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "status").write_text("")
        (self.folder / "etc/sources.list").write_text(sources(mirrors()))
        self.config.write_text(configuration(self.folder, self.architectures))
        self._run(UPDATE_SECONDS, "apt-get", "update", "--error-on=any")

    def offered(self, name: str, architecture: str) -> Package:
        """The newest version of a package; its architecture is ``all`` if one package serves all architectures.

        Raises:
            ImageError: Debian has no such package.
        """
        for asked in (f"{name}:{architecture}", name):
            text = self._run(ASK_SECONDS, "apt-cache", "show", "--no-all-versions", asked)
            fields = dict(re.findall(r"^(Version|SHA256|Architecture): (.+)$", text, re.MULTILINE))
            if fields.keys() == {"Version", "SHA256", "Architecture"} and fields["Architecture"] in (architecture, ALL):
                return Package(fields["Architecture"], name, fields["Version"], fields["SHA256"])
        raise ImageError(f"Debian {SUITE} offers no package {name} for {architecture}")

    def download(self, packages: Iterable[Package], store: Path) -> dict[Package, Path]:
        """The files of ``packages`` in ``store``, which keeps them by hash.

        Raises:
            ImageError: Debian now offers another version, or the file has another hash.
        """
        store.mkdir(parents=True, exist_ok=True)
        files = {package: store / f"{package.sha256}.deb" for package in packages}
        missing = [package for package, path in files.items() if not _has(path, package.sha256)]
        if missing:
            self.update()
        for package in missing:
            self._fetch(package, files[package])
        return files

    def _fetch(self, package: Package, path: Path) -> None:
        folder = path.with_suffix(".part")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            architecture = "" if package.architecture == ALL else f":{package.architecture}"
            wanted = f"{package.name}{architecture}={package.version}"
            try:
                self._run(DOWNLOAD_SECONDS, "apt-get", "download", wanted, cwd=folder)
            except ImageError as error:
                raise ImageError(
                    f"{error}\nIf Debian offers a newer {package.name}, run `make image-lock` and commit image/debian.lock."
                ) from error
            (found,) = folder.iterdir()
            if not _has(found, package.sha256):
                raise ImageError(
                    f"{found.name} does not have the hash in image/debian.lock: the mirror is damaged, or is not one of Debian"
                )
            found.replace(path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _run(self, seconds: float, *command: str, cwd: Path | None = None) -> str:
        return run(command, seconds, cwd=cwd, environment={"APT_CONFIG": str(self.config)})


def run(command: Sequence[str], seconds: float, cwd: Path | None = None, environment: dict[str, str] | None = None) -> str:
    """The output of a command.

    Raises:
        ImageError: the command is missing, fails, or takes longer than ``seconds``.
    """
    variables = os.environ | {"LC_ALL": "C"} | (environment or {})
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, env=variables, cwd=cwd)
    except FileNotFoundError as error:
        raise ImageError(f"{command[0]} is missing: build the image on Debian or Ubuntu") from error
    except subprocess.TimeoutExpired as error:
        raise ImageError(f"{' '.join(command)}: no result within {seconds:.0f} s") from error
    if done.returncode:
        raise ImageError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def mirrors() -> tuple[str, str]:
    """The addresses of Debian and of its security updates: from ``DEBIAN_MIRROR``, or else from the machine's sources.

    Raises:
        ImageError: the machine has no sources of Debian.
    """
    if given := os.environ.get(MIRROR, "").rstrip("/"):
        return given, f"{given}-security"
    used = run(["apt-get", "indextargets", "--format", "$(LABEL)|$(REPO_URI)", "Created-By: Packages"], ASK_SECONDS)
    return chosen(used)


def chosen(targets: str) -> tuple[str, str]:
    """The addresses in ``LABEL|URI`` lines of apt.

    Raises:
        ImageError: Debian or its security updates are not among them.
    """
    found = dict(reversed([line.split("|", 1) for line in targets.splitlines() if "|" in line]))
    if "Debian" not in found or "Debian-Security" not in found:
        raise ImageError(
            "this machine's apt uses no mirror of Debian, or apt-get update was never run; name a mirror: "
            f"make image {MIRROR}=URL, which has the security updates at URL-security"
        )
    return found["Debian"].rstrip("/"), found["Debian-Security"].rstrip("/")


def sources(addresses: tuple[str, str]) -> str:
    """Apt's list of sources.

    Raises:
        ImageError: Debian's keys are missing.
    """
    if not KEYRING.exists():
        raise ImageError(f"{KEYRING} is missing: apt-get install debian-archive-keyring")
    debian, security = addresses
    return f"deb [signed-by={KEYRING}] {debian} {SUITE} main\ndeb [signed-by={KEYRING}] {security} {SUITE}-security main\n"


def configuration(folder: Path, architectures: Sequence[str]) -> str:
    """Apt's configuration: everything is in ``folder``."""
    names = " ".join(f'"{name}";' for name in architectures)
    return (
        f'Dir "{folder}";\nDir::Etc "{folder}/etc";\nDir::State "{folder}/state";\nDir::State::status "{folder}/status";\n'
        f'Dir::Cache "{folder}/cache";\nAPT::Architecture "{architectures[0]}";\nAPT::Architectures {{ {names} }};\n'
        'Acquire::Languages "none";\nAcquire::Retries "3";\nAPT::Sandbox::User "root";\n'
    )


def _has(path: Path, sha256: str) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256
