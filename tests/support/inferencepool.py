"""The InferencePool of gateway-api-inference-extension, from its Go module."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

MODULE = "sigs.k8s.io/gateway-api-inference-extension@v1.0.0"
SUM = "h1:GsHvlu1Cn1t6+vrHoPdNNlpwKxf/y1HuQSlUjd58Ds8="
"""Of the module's files, as in a go.sum."""
FILE = "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml"
DOWNLOAD_SECONDS = 120


def definition() -> dict[str, Any]:
    """The CustomResourceDefinition. Go keeps the module in its cache, so it is downloaded once."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go downloads the module with the CustomResourceDefinition, and is not installed")
    # Its sum is compared here, so no checksum database is needed.
    environment = {
        **os.environ,
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "GOFLAGS": "-mod=mod",
        "GONOSUMDB": MODULE.split("@")[0],
    }
    done = subprocess.run(
        [go, "mod", "download", "-json", MODULE],
        cwd="/", env=environment, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False,
    )  # fmt: skip
    found = json.loads(done.stdout or "{}")
    assert done.returncode == 0 and not found.get("Error"), done.stderr or found
    assert found["Sum"] == SUM, f"{MODULE} has another content than expected"
    crd: dict[str, Any] = yaml.safe_load(Path(found["Dir"], FILE).read_text(encoding="utf-8"))
    return crd
