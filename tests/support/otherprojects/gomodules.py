"""Programs of the tests that are written in Go, each built once into the cache; and files of Go modules."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from thunderfleet_controlplane.assets import CONTROL_PLANE, Bundle, find_assets, find_go
from thunderfleet_localcluster.paths import cache_folder

DOWNLOAD_SECONDS = 120


@dataclass(frozen=True)
class _TestBundle(Bundle):
    """A Go module of the tests."""

    @property
    def module(self) -> Path:
        """The folder with go.mod."""
        return Path(__file__).parent / "go" / self.name


def program(module: str, name: str, package: str = ".", seconds: int = 120, flags: str = "-s -w") -> Path:
    """A program of ``go/MODULE`` beside this file. ``seconds``: how long a build is expected to take. Raises AssetsError."""
    return programs(module, {name: (package, seconds)}, flags) / name


def programs(module: str, wanted: Mapping[str, tuple[str, int]], flags: str) -> Path:
    """The folder with several programs of one module: name → (package, seconds of a build). Raises AssetsError."""
    bundle = _TestBundle(module, wanted, flags, given=False)
    return find_assets(lambda event: None, bundle, cache_folder() / module)


def files(module: str, checksum: str) -> Path:
    """The folder with the files of a Go module, which Go keeps in its cache. ``checksum``: as in a go.sum."""
    go, environment = find_go(CONTROL_PLANE, cache_folder() / "go-modules", lambda event: None)
    # The sum is compared here, so no checksum database is needed.
    environment |= {"GOFLAGS": "-mod=mod", "GONOSUMDB": module.split("@")[0]}
    done = subprocess.run(
        [go, "mod", "download", "-json", module],
        cwd="/", env=environment, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False,
    )  # fmt: skip
    found = json.loads(done.stdout or "{}")
    assert done.returncode == 0 and not found.get("Error"), done.stderr or found
    assert found["Sum"] == checksum, f"{module} has another content than expected"
    return Path(found["Dir"])
