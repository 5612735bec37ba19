"""The wheel has everything: it is installed without the checkout, and its programs and data are used from there."""

import sys
from pathlib import Path

import pytest
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.shipped import shipped

from tests.support.install.wheel import ROOT, install, library, name_dependencies, run

FILES = """
import sys, thunderfleet_localcluster
from thunderfleet_controlplane.assets import CONTROL_PLANE, ETCDUTL, MONITORING, digest
from thunderfleet_localcluster.image import digest as image_digest
from thunderfleet_localcluster.shipped import shipped
print(thunderfleet_localcluster.__file__)
print(shipped("charts/thunderfleet"))
print(shipped("examples/tiny.yaml"))
print(CONTROL_PLANE.module, digest(CONTROL_PLANE))
print(ETCDUTL.module, digest(ETCDUTL))
print(MONITORING.module, digest(MONITORING))
print(image_digest())
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel. Its dependencies are those of this environment, without our editable packages."""
    environment = install(tmp_path_factory.mktemp("wheel"))
    name_dependencies(environment)
    return environment


def test_an_installed_wheel_has_its_programs_the_chart_and_the_go_modules(installed: Path) -> None:

    programs = sorted(path.name for path in (installed / "bin").glob("thunderfleet*"))
    assert programs == sorted(path.name for path in Path(sys.executable).parent.glob("thunderfleet*"))
    for program in programs:
        assert "usage:" in run(installed / "bin" / program, "--help")
    found = run(installed / "bin/python", "-c", FILES).splitlines()
    assert len(found) == 7
    assert all(line.startswith(str(installed)) for line in found[:-1]), found


def test_the_chart_in_the_wheel_is_that_of_the_checkout(installed: Path) -> None:
    here, there = ROOT / "charts/thunderfleet", library(installed) / "thunderfleet_localcluster/shipped/charts/thunderfleet"

    def files(chart: Path) -> dict[Path, bytes]:
        found = (path for path in chart.rglob("*") if path.is_file() and path.parent.name != "__pycache__")
        return {path.relative_to(chart): path.read_bytes() for path in found}

    assert files(here) == files(there)


COPY = """
import sys
from pathlib import Path
from thunderfleet_localcluster import image
from thunderfleet_localcluster.errors import LocalClusterError
try:
    image.copy(Path(sys.argv[1]), Path("/opt/thunderfleet/1.0"))
except LocalClusterError as error:
    print(error)
"""


def test_an_installed_wheel_is_copied_for_root_unless_it_was_changed(installed: Path, tmp_path: Path) -> None:
    """With the RECORD that pip wrote."""
    assert run(installed / "bin/python", "-c", COPY, tmp_path / "copy") == ""
    packages = library(tmp_path / "copy")
    assert (packages / "thunderfleet_kubelet").is_dir()
    changed = packages.relative_to(tmp_path / "copy") / "thunderfleet_kubelet" / "cli.py"
    original = (installed / changed).read_bytes()
    try:
        (installed / changed).write_bytes(original + b"# evil")
        said = run(installed / "bin/python", "-c", COPY, tmp_path / "again")
    finally:
        (installed / changed).write_bytes(original)
    assert said.startswith("thunderfleet_kubelet/cli.py in site-packages differs from the RECORD of its package")


def test_what_an_installation_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(LocalClusterError, match=r"charts/thunderfleet is missing in .*; install thunderfleet again"):
        shipped("charts/thunderfleet", (tmp_path,))
