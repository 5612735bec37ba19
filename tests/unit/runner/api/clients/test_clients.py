"""LangChain, LiteLLM, ``llm`` and Vercel's AI SDK against a real group of two ranks: see ``tests/clients``.

They are installed for it, from lists with hashes, which takes minutes.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.runner.walker import KEY, walker

CLIENTS = Path(__file__).parents[4] / "clients"
INSTALL_SECONDS = 900
SCRIPT_SECONDS = 300

pytestmark = pytest.mark.soak


def _run(*command: str | Path, folder: Path, **more: str) -> str:
    environment = {**os.environ, **more}
    done = subprocess.run(
        [str(part) for part in command], cwd=folder, env=environment, capture_output=True, text=True, timeout=INSTALL_SECONDS
    )
    assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-4000:])
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the clients, and Node with the AI SDK in ``node_modules`` beside it."""
    folder = tmp_path_factory.mktemp("clients")
    _run(sys.executable, "-m", "venv", folder / "venv", folder=folder)
    install = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes", "-r")
    _run(folder / "venv" / "bin" / "python", *install, CLIENTS / "requirements.txt", folder=folder)
    for name in ("package.json", "package-lock.json", "ai_sdk.mjs"):
        (folder / name).write_bytes((CLIENTS / name).read_bytes())
    programs = f"{folder / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    _run(folder / "venv" / "bin" / "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", folder=folder, PATH=programs)
    return folder


@pytest.mark.parametrize("script", ["langchain_client.py", "litellm_client.py", "llm_client.py", "ai_sdk.mjs"])
async def test_clients_work(served: Callable[..., Any], tiny: Path, tmp_path: Path, installed: Path, script: str) -> None:
    program = installed / "venv" / "bin" / ("node" if script.endswith(".mjs") else "python")
    # The AI SDK looks for its packages beside the script.
    path = installed / script if script.endswith(".mjs") else CLIENTS / script
    async with walker(served, tiny, tmp_path / "walker") as (group, client):
        process = await asyncio.create_subprocess_exec(
            program, path, str(client.base_url).rstrip("/"), KEY,
            cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "DO_NOT_TRACK": "1", "AI_SDK_LOG_WARNINGS": "false"},
        )  # fmt: skip
        async with asyncio.timeout(SCRIPT_SECONDS):
            out, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()[-4000:]
        found: dict[str, str] = json.loads(out.decode().strip().splitlines()[-1])
        assert found and set(found.values()) == {"works"}, {name: what for name, what in found.items() if what != "works"}
        assert group.running[0][0].state.recoveries == 0
