"""Whether the pinned requirements install on a Mac: ``python -m tests.darwin.wheels 3.11 3.12``. Downloads the wheels.

For each version of Python: the pins that apply on macOS have wheels for Apple silicon with a pinned hash, and pin everything
that these wheels need there.
"""

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from email.parser import HeaderParser
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parents[2]
PLATFORM = "macosx_14_0_arm64"
DOWNLOAD_SECONDS = 1800
SOURCES = ("yattag",)
"""Published as source only; pure Python, so pip builds them without a compiler."""


def environment(python: str) -> dict[str, str]:
    """The environment of markers on a Mac with that version of Python."""
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "os_name": "posix",
        "platform_machine": "arm64",
        "platform_python_implementation": "CPython",
        "platform_release": "23.0.0",
        "platform_system": "Darwin",
        "platform_version": "Darwin Kernel Version 23.0.0",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "darwin",
        "extra": "",
    }


def pins(text: str) -> Iterator[tuple[Requirement, str]]:
    """The pinned requirements with their hashes, as options of pip."""
    for line in text.replace("\\\n", " ").splitlines():
        if line and not line.startswith("#"):
            requirement, *hashes = line.split(" --hash=")
            yield Requirement(requirement.strip()), " ".join(f"--hash={one.strip()}" for one in hashes)


def applies(marker: Marker | None, where: Mapping[str, str]) -> bool:
    """Whether a requirement with this marker is one in that environment."""
    return marker is None or marker.evaluate(dict(where))


def needs(wheel: Path, where: Mapping[str, str]) -> Iterator[Requirement]:
    """What a wheel requires in that environment, without extras."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA") and name.count("/") == 1)
        metadata = HeaderParser().parsestr(archive.read(name).decode())
    for text in metadata.get_all("Requires-Dist") or ():
        requirement = Requirement(text)
        if applies(requirement.marker, where):
            yield requirement


def problems(python: str, folder: Path) -> list[str]:
    """What is wrong for that version of Python; the wheels go to ``folder``."""
    where = environment(python)
    wanted = [(pin, hashes) for pin, hashes in pins((ROOT / "requirements.txt").read_text()) if applies(pin.marker, where)]
    file = folder / "requirements.txt"
    file.write_text("".join(f"{pin.name}{pin.specifier} {hashes}\n" for pin, hashes in wanted))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    command += [f"--no-binary={','.join(SOURCES)}"]
    command += [
        "--platform",
        PLATFORM,
        "--python-version",
        python,
        "--implementation",
        "cp",
        "-d",
        str(folder),
        "-r",
        str(file),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False)
    if done.returncode:
        return [done.stderr.strip()]
    return [*_unsatisfied(folder, where)]


def _unsatisfied(folder: Path, where: Mapping[str, str]) -> Iterator[str]:
    wheels = {canonicalize_name(parse_wheel_filename(wheel.name)[0]): wheel for wheel in folder.glob("*.whl")}
    for name, wheel in wheels.items():
        for requirement in needs(wheel, where):
            other = wheels.get(canonicalize_name(requirement.name))
            if requirement.name in SOURCES:
                continue
            if other is None:
                yield f"{name} needs {requirement}, which is not pinned"
            elif not _allows(requirement.specifier, other):
                yield f"{name} needs {requirement}, pinned is {other.name}"


def _allows(specifier: SpecifierSet, wheel: Path) -> bool:
    return specifier.contains(parse_wheel_filename(wheel.name)[1], prereleases=True)


def main(versions: Sequence[str]) -> int:
    """Returns 1 if something is wrong for any version."""
    failed = False
    for python in versions:
        with tempfile.TemporaryDirectory() as folder:
            found = problems(python, Path(folder))
            count = len(list(Path(folder).glob("*.whl")))
        print(f"Python {python} on {PLATFORM}: " + ("\n  ".join(["", *found]) if found else f"{count} wheels"), flush=True)
        failed = failed or bool(found)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
