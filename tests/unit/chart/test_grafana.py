"""The dashboards are what Grafana's own schema, the types of @grafana/schema, allows. Needs Node.js and npm."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

SHAPES = Path(__file__).parents[2] / "support" / "monitoring" / "grafana"
MADE = 'import type {{ Shape }} from "../shapes.js";\n\nexport const made: Shape = {};\n'
INSTALL_SECONDS = 300
COMPILE_SECONDS = 120
# A text of the fleet's dashboard, and what it must not be: another field, value, type of a value, or nothing.
WRONG = (
    ('"expr":', '"query":'),
    ('"unit": "short"', '"units": "short"'),
    ('"mode": "absolute"', '"mode": "relative"'),
    ('"fillOpacity": 10', '"fillOpacity": "10"'),
    ('"graphMode": "area"', '"graphMode": "areas"'),
    ('"type": "table"', '"type": "tables"'),
    ('"multi": true', '"multi": true, "auto": false'),
    ('"schemaVersion": 41,', ""),
)

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(shutil.which("npm") is None, reason="no npm, which installs @grafana/schema and TypeScript"),
]


def run(folder: Path, *command: str, seconds: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False)


@pytest.fixture
def shapes(tmp_path: Path) -> Path:
    """A folder with the types and a compiler; it checks what is in ``made``."""
    for name in ("package.json", "package-lock.json", "shapes.ts", "tsconfig.json"):
        (tmp_path / name).write_bytes((SHAPES / name).read_bytes())
    done = run(tmp_path, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", seconds=INSTALL_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "made").mkdir()
    return tmp_path


def test_grafanas_schema_allows_the_dashboards_and_not_what_differs(shapes: Path, chart: Path) -> None:
    files = sorted((chart / "dashboards").glob("*.json"))
    assert len(files) == 6
    for file in files:
        (shapes / "made" / f"{file.stem}.ts").write_text(MADE.format(file.read_text()))
    fleet = (chart / "dashboards" / "thunderfleet-fleet.json").read_text()
    for number, (right, wrong) in enumerate(WRONG):
        assert right in fleet, right
        (shapes / "made" / f"wrong-{number}.ts").write_text(MADE.format(fleet.replace(right, wrong, 1)))
    done = run(shapes, "npx", "--no-install", "tsc", "--project", ".", seconds=COMPILE_SECONDS)
    refused = set(re.findall(r"^(\S+?)\(\d+,\d+\): error", done.stdout, re.MULTILINE))
    assert refused == {f"made/wrong-{number}.ts" for number in range(len(WRONG))}, done.stdout + done.stderr
