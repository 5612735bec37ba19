"""Writes the JSON of the chart's dashboards; with ``--check`` it only compares, and exits with 1 when a file is stale."""

import argparse
import json
import sys
from pathlib import Path

from thunderfleet_dashboards import cables, control, deployment, fleet, group, serving
from thunderfleet_dashboards.panels import build

PAGES = (fleet.PAGE, deployment.PAGE, group.PAGE, cables.PAGE, serving.PAGE, control.PAGE)
FOLDER = Path(__file__).parents[1] / "thunderfleet" / "dashboards"


def texts() -> dict[str, str]:
    """Content of each file by its name."""
    return {f"{page.uid}.json": json.dumps(build(page), indent=1, ensure_ascii=False) + "\n" for page in PAGES}


def main() -> int:
    """Exit status 0 when the files are written or current, 1 when one is stale."""
    parser = argparse.ArgumentParser(prog="python -m thunderfleet_dashboards", description="Write the chart's dashboards.")
    parser.add_argument("--check", action="store_true", help="compare only; exit with 1 when a file is stale")
    check = bool(parser.parse_args().check)
    made = texts()
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    stale = sorted({name for name in made.keys() | there.keys() if made.get(name) != there.get(name)})
    if check:
        for name in stale:
            print(f"{FOLDER / name} is stale: run make docs", file=sys.stderr)
        return 1 if stale else 0
    for name in there.keys() - made.keys():
        (FOLDER / name).unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
