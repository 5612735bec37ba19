"""The InferencePool of gateway-api-inference-extension, from its Go module."""

from typing import Any

import yaml

from tests.support import gomodules

MODULE = "sigs.k8s.io/gateway-api-inference-extension@v1.0.0"
SUM = "h1:GsHvlu1Cn1t6+vrHoPdNNlpwKxf/y1HuQSlUjd58Ds8="
"""Of the module's files, as in a go.sum."""
FILE = "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml"


def definition() -> dict[str, Any]:
    """The CustomResourceDefinition."""
    crd: dict[str, Any] = yaml.safe_load((gomodules.files(MODULE, SUM) / FILE).read_text(encoding="utf-8"))
    return crd
