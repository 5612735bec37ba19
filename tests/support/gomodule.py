"""Files of Go modules that are not built: the CustomResourceDefinitions of other projects."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

DOWNLOAD_SECONDS = 120


@dataclass(frozen=True)
class Module:
    """A Go module. ``name``: path@version. ``sum``: of its files, as in a go.sum."""

    name: str
    sum: str

    def definition(self, file: str) -> dict[str, Any]:
        """The CustomResourceDefinition in a file. Go keeps the module in its cache, so it is downloaded once."""
        crd: dict[str, Any] = yaml.safe_load((self._folder() / file).read_text(encoding="utf-8"))
        return crd

    def _folder(self) -> Path:
        go = shutil.which("go")
        if go is None:
            pytest.skip("Go downloads the module with the CustomResourceDefinition, and is not installed")
        # Its sum is compared here, so no checksum database is needed.
        environment = {
            **os.environ,
            "GOTOOLCHAIN": "local",
            "GOWORK": "off",
            "GOFLAGS": "-mod=mod",
            "GONOSUMDB": self.name.split("@")[0],
        }
        done = subprocess.run(
            [go, "mod", "download", "-json", self.name],
            cwd="/", env=environment, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False,
        )  # fmt: skip
        found = json.loads(done.stdout or "{}")
        assert done.returncode == 0 and not found.get("Error"), done.stderr or found
        assert found["Sum"] == self.sum, f"{self.name} has another content than expected"
        return Path(found["Dir"])


GATEWAY_API = Module("sigs.k8s.io/gateway-api@v1.6.3", "h1:lKpJa5bGlraC/QeACvCpsHLdmO6y0iKfzVl6gzaFEYc=")
INFERENCE_EXTENSION = Module(
    "sigs.k8s.io/gateway-api-inference-extension@v1.0.0", "h1:GsHvlu1Cn1t6+vrHoPdNNlpwKxf/y1HuQSlUjd58Ds8="
)
KEDA = Module("github.com/kedacore/keda/v2@v2.21.0", "h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps=")
