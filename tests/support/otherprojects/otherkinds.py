"""Kinds of other projects: their CustomResourceDefinitions, from Go modules."""

from dataclasses import dataclass
from typing import Any

from tests.support import yamltext
from tests.support.otherprojects import gomodules


@dataclass(frozen=True)
class Module:
    """A Go module. ``name``: path@version. ``sum``: of its files, as in a go.sum."""

    name: str
    sum: str

    def definition(self, file: str) -> dict[str, Any]:
        """The CustomResourceDefinition in a file."""
        crd: dict[str, Any] = yamltext.load((gomodules.files(self.name, self.sum) / file).read_text(encoding="utf-8"))
        return crd


GATEWAY_API = Module("sigs.k8s.io/gateway-api@v1.6.3", "h1:lKpJa5bGlraC/QeACvCpsHLdmO6y0iKfzVl6gzaFEYc=")
INFERENCE_EXTENSION = Module(
    "sigs.k8s.io/gateway-api-inference-extension@v1.0.0", "h1:GsHvlu1Cn1t6+vrHoPdNNlpwKxf/y1HuQSlUjd58Ds8="
)
KEDA = Module("github.com/kedacore/keda/v2@v2.21.0", "h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps=")
