"""Builds all Go programs for Macs: ``python -m tests.darwin.programs [NAME…]``. They are not kept; Go's cache is."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

from thunderfleet_controlplane.assets import CONTROL_PLANE, ETCDUTL, MONITORING, Bundle, find_go

BUILD_SECONDS = 3600
MACH_O_ARM64 = bytes.fromhex("cffaedfe0c000001")
"""The first bytes of a 64-bit Mach-O file for arm64: magic number and CPU type."""


def build(bundle: Bundle, name: str, folder: Path) -> str:
    """Builds one program. Returns the error; empty if it is a program for a Mac."""
    go, env = find_go(bundle, folder / "cache", lambda event: None)
    target = folder / name
    flags = ["-trimpath", "-buildvcs=false", "-tags", bundle.tags, "-ldflags", bundle.flags]
    done = subprocess.run(
        [go, "build", *flags, "-o", str(target), bundle.programs[name][0]],
        cwd=bundle.module,
        env={**env, "GOOS": "darwin", "GOARCH": "arm64"},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    if done.returncode:
        return done.stderr.strip() or f"go build failed with code {done.returncode}"
    with target.open("rb") as file:
        head = file.read(len(MACH_O_ARM64))
    os.unlink(target)
    return "" if head == MACH_O_ARM64 else f"not a Mach-O file for arm64: it begins with {head.hex()}"


def main(only: Collection[str]) -> int:
    """Returns 1 if a program cannot be built."""
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for bundle in (CONTROL_PLANE, ETCDUTL, MONITORING):
            for name in bundle.programs:
                if not only or name in only:
                    problem = build(bundle, name, Path(folder))
                    print(f"{name} for darwin/arm64: {problem or 'built'}", flush=True)
                    failed = failed or bool(problem)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
