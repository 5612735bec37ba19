"""What the programs that run on every Mac import."""

import json
import subprocess
import sys

import pytest

SECONDS = 120
LOADED = """
import json, sys
import {module}
print(json.dumps(sorted({{name.partition(".")[0] for name in sys.modules}})))
"""
LATER = """
import thunderfleet_kubelet.app
import kubernetes.client
import kubernetes.config
print(kubernetes.client.CoreV1Api.__name__, kubernetes.config.load_kube_config.__name__)
"""


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS, check=True).stdout


@pytest.mark.parametrize("module", ["thunderfleet_kubelet.app", "thunderfleet_agent.agent"])
def test_no_program_of_every_mac_imports_the_synchronous_client(module: str) -> None:
    loaded = set(json.loads(python(LOADED.format(module=module))))
    assert "kubernetes" in loaded
    assert not loaded & {"requests", "oauthlib", "requests_oauthlib", "websocket"}


def test_the_synchronous_client_can_be_imported_later() -> None:
    assert python(LATER).split() == ["CoreV1Api", "load_kube_config"]
