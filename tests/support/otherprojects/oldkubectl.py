"""kubectl of two minor versions before that of the cluster: one older than Kubernetes supports with it."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.support.otherprojects import gomodules

VERSION = "v1.34.4"
SECONDS = 120.0
_FLAGS = f"-s -w -X k8s.io/component-base/version.gitVersion={VERSION} -X k8s.io/component-base/version.gitMajor=1"


def program() -> Path:
    """Builds it once. Raises AssetsError."""
    return gomodules.program("kubectl134", "kubectl", "k8s.io/kubernetes/cmd/kubectl", 120, _FLAGS)


def run(
    kubectl: Path, environment: Mapping[str, str], *words: str, text: str | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """One command. With ``check``, it must succeed."""
    done = subprocess.run(
        [str(kubectl), *words], env=dict(environment), input=text, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert not check or done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
    return done
