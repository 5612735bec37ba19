"""The command ``llm``."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import CITY, MODEL, run

URL, KEY = sys.argv[1:]
TOOL = 'def weather(city: str) -> str:\n    "The weather"\n    return "sun in " + city\n'


def llm(*arguments: str, both: bool = False) -> str:
    """What the command prints; ``both``: to standard error too, whatever its exit code."""
    command = [str(Path(sys.executable).with_name("llm")), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ | {"LLM_USER_PATH": FOLDER})
    if both:
        return done.stdout + done.stderr
    if done.returncode:
        raise RuntimeError(done.stderr[-400:])
    return done.stdout


def prompt(*more: str) -> str:
    return llm("prompt", "-m", "tiny", "hi", "-o", "max_tokens", "40", *more)


def tools() -> bool:
    """The model calls the tool again and again: the chain of calls ends at its limit."""
    said = llm("prompt", "-m", "tiny", "hi", "--functions", TOOL, "--td", "--cl", "2", "-o", "max_tokens", "40", both=True)
    if "weather" not in said or "sun in Oslo" not in said:
        raise RuntimeError(said[-400:])
    return True


with tempfile.TemporaryDirectory() as FOLDER:
    names = {"model_id": "tiny", "model_name": MODEL, "api_base": URL, "api_key_name": "tiny"}
    model = {**names, "supports_tools": True, "supports_schema": True}
    # JSON is YAML too.
    Path(FOLDER, "extra-openai-models.yaml").write_text(json.dumps([model]))
    Path(FOLDER, "keys.json").write_text(json.dumps({"tiny": KEY}))
    run(
        {
            "chat": lambda: prompt("--no-stream").strip(),
            "stream": lambda: prompt().strip(),
            "schema": lambda: set(json.loads(prompt("--no-stream", "--schema", json.dumps(CITY)))) == {"city"},
            "tools": tools,
        }
    )
