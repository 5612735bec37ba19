"""The files that a local cluster writes for the kubelets of its machines."""

from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from thunderfleet_kubelet import configfile
from thunderfleet_localcluster.cluster_folder import ClusterFolder
from thunderfleet_localcluster.fleet.file import parse_fleet
from thunderfleet_localcluster.fleet.layout import plan_layout
from thunderfleet_localcluster.supervisor.machine_pool import MachinePool
from thunderfleet_localcluster.supervisor.spec import ImageSpec, Spec

FLEET = """
machines:
  - {name: mac-1, model: Mac Studio (M3 Ultra), memory: 96 GB}
  - {name: linux-1, kind: linux}
  - {name: linux-2, kind: linux}
"""


@pytest.mark.parametrize(("plane", "expected"), [(None, ["linux-1"]), ("mac-1", [])])
def test_one_kubelet_watches_the_certificates_of_a_control_plane_that_is_on_no_mac(
    tmp_path: Path, plane: str | None, expected: list[str]
) -> None:
    image = ImageSpec("image", "/image", "/image.lock")
    spec = Spec("c", "namespaces", "", "/assets", FLEET, "fleet.yaml", image, ("kubelet",), False, plane)
    folder = ClusterFolder(tmp_path)
    pool = MachinePool(folder, spec, plan_layout(parse_fleet(FLEET), "namespaces"), cast(Any, None))
    pool.write_files()
    watched: dict[str, Path] = {}
    for name in ("mac-1", "linux-1", "linux-2"):
        file = folder.machine(name) / "kubelet.yaml"
        assert yaml.safe_load(file.read_text())["nodeName"] == name
        found = configfile.load(file)
        # The control plane is on this machine, and not in the network of one of the cluster's.
        assert not found.control_plane_components
        if found.control_plane_certificates is not None:
            watched[name] = found.control_plane_certificates
    assert list(watched) == expected
    assert set(watched.values()) <= {folder.control_plane / "pki"}
