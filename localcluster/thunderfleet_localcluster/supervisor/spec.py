"""The specification of one cluster, which ``thunderfleet local up`` writes as JSON and the supervisor reads once. Pure."""

import json
from dataclasses import asdict, dataclass

from thunderfleet_localcluster.fleet.layout import Mode


@dataclass(frozen=True)
class ImageSpec:
    """The image with Thunderfleet's programs: its name, its folder, and the file on which its users hold a shared lock."""

    name: str
    folder: str
    lock: str


@dataclass(frozen=True)
class Spec:
    """A cluster to start."""

    name: str
    mode: Mode
    reason: str
    """Why ``mode`` is not ``namespaces``; empty if it is."""
    assets: str
    """Folder of the control plane's programs."""
    fleet: str
    """Text of the fleet file."""
    fleet_file: str
    """Name of the fleet file, for messages."""
    image: ImageSpec
    kubelet: tuple[str, ...] | None
    """Command line of the kubelet; None starts machines without kubelets."""
    audit: bool
    """Write the API server's audit log."""
    control_plane_mac: str | None = None
    """The Mac on which `thunderfleet init` will install the control plane; None: the supervisor runs one."""

    def to_json(self) -> str:
        """The text of the spec file."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Spec":
        """Parse a spec file."""
        data = json.loads(text)
        kubelet = data["kubelet"]
        return cls(**{**data, "image": ImageSpec(**data["image"]), "kubelet": tuple(kubelet) if kubelet is not None else None})
