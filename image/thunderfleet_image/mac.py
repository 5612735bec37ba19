"""The image for Macs: our packages, and scripts that start the Mac's own Python, which has all other packages.

A container on a Mac is a process of the host, so its image needs no operating system. Also, no package registry offers a
Python for macOS.
"""

from __future__ import annotations

from typing import Any

from thunderfleet_image.recipe import MAC, SITE_PACKAGES, description
from thunderfleet_image.tree import Tree, file

Json = dict[str, Any]

PYTHON = "/usr/local/thunderfleet/bin/python3"
"""Path at which docs/install.md installs Thunderfleet on a Mac."""
PROGRAMS = {
    "thunderfleet-agent": "thunderfleet_agent.cli:main",
    "thunderfleet-operator": "thunderfleet_operator.cli:main",
    "thunderfleet-router": "thunderfleet_router.cli:main",
    "thunderfleet-runner": "thunderfleet_runner.cli:main",
}
"""Programs of pods to their functions. The kubelet is not a pod."""
PACKAGES, SCRIPTS = "packages", "bin"

_SCRIPT = """\
#!/bin/sh
export PYTHONPATH="${{0%/*}}/../{packages}${{PYTHONPATH:+:$PYTHONPATH}}"
exec {python} -P -c 'import sys; from {module} import {function}; sys.exit({function}())' "$@"
"""


def scripts(python: str = PYTHON) -> Tree:
    """The scripts that start the programs. ``python``: the path of Python on Macs."""
    made: Tree = {}
    for name, target in PROGRAMS.items():
        module, _, function = target.partition(":")
        text = _SCRIPT.format(packages=PACKAGES, python=python, module=module, function=function)
        made[f"{SCRIPTS}/{name}"] = file(text.encode(), 0o755)
    return made


def contents(ours: Tree, license_text: bytes, python: str = PYTHON) -> Tree:
    """The only layer. ``ours``: the files that our wheel installs, below SITE_PACKAGES."""
    made = {f"{PACKAGES}/{path.removeprefix(f'{SITE_PACKAGES}/')}": entry for path, entry in ours.items()}
    return made | scripts(python) | {"LICENSE": file(license_text)}


def configuration(version: str, revision: str, created: str, diff_ids: list[str]) -> Json:
    """The image configuration; see ``recipe.configuration``. Kubelets find ``bin`` without a PATH."""
    return {
        "architecture": MAC.architecture,
        "os": MAC.os,
        "created": created,
        "config": {
            "Env": ["PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1"],
            "Cmd": ["thunderfleet-agent", "--help"],
            "Labels": description("Programs of Thunderfleet for Macs", version, revision),
        },
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
        "history": [{"created": created, "created_by": f"thunderfleet {version}"}],
    }
