"""Examples for programs that lead to our Services or scale our ModelDeployments, checked by a real API server.

The kinds of Gateway API and KEDA are those of their Go modules.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.errors import LocalClusterError

from tests.support.otherprojects.otherkinds import GATEWAY_API, KEDA, Module
from tests.support.waiting import until

Json = dict[str, Any]

EXAMPLES = Path(__file__).parents[3] / "examples" / "outside"
KINDS: dict[str, tuple[Module, str]] = {
    "httproute": (GATEWAY_API, "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml"),
    "keda": (KEDA, "config/crd/bases/keda.sh_scaledobjects.yaml"),
}
CREATE = ("create", "--dry-run=server", "--validate=strict", "-n", "default", "-o", "json", "-f", "-")
WRONG: dict[str, Json] = {
    "httproute": {"rules": [{"backendRefs": [{"name": "thunderfleet-router"}]}]},
    "keda": {"triggers": []},
}
"""Changes of the spec that the kind does not allow: a Service without a port, and nothing that scales."""


@contextmanager
def kind(cluster: Cluster, module: Module, file: str) -> Iterator[None]:
    """The API server has the kind."""
    definition = module.definition(file)
    name = definition["metadata"]["name"]
    cluster.kubectl("apply", "--server-side", "-f", "-", text=json.dumps(definition))
    try:
        cluster.kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=60s", seconds=90)
        yield
    finally:
        cluster.kubectl("delete", "crd", name, "--timeout=60s", seconds=90)


def example(name: str) -> Json:
    found: Json = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    found["metadata"].pop("namespace", None)
    return found


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.yaml")))
def test_the_api_server_accepts_an_example_as_it_is(control_plane: Cluster, name: str) -> None:
    """Without a warning: no field is unknown or deprecated. Nothing is stored."""
    wanted = example(name)
    with ExitStack() as stack:
        if name in KINDS:
            stack.enter_context(kind(control_plane, *KINDS[name]))

        def served() -> bool:
            # Discovery may know a new kind a moment later.
            return control_plane.kubectl(*CREATE, text=yaml.safe_dump(wanted), check=False).returncode == 0

        if name in KINDS:
            until(served, "the kind is served", describe=lambda: tried(control_plane, wanted))
        done = control_plane.kubectl(*CREATE, text=yaml.safe_dump(wanted))
        assert done.stderr == ""
        made = json.loads(done.stdout)
        assert made["kind"] == wanted["kind"]
        assert missing(wanted["spec"], made["spec"]) == []
        if name in WRONG:
            wrong = {**wanted, "spec": {**wanted["spec"], **WRONG[name]}}
            with pytest.raises(LocalClusterError, match=r"is invalid|Invalid value|Required value"):
                control_plane.kubectl(*CREATE, text=yaml.safe_dump(wrong))
        with pytest.raises(LocalClusterError, match="unknown field"):
            control_plane.kubectl(*CREATE, text=yaml.safe_dump({**wanted, "spec": {**wanted["spec"], "other": 1}}))


def tried(cluster: Cluster, wanted: Json) -> str:
    return cluster.kubectl(*CREATE, text=yaml.safe_dump(wanted), check=False).stderr


def missing(wanted: object, made: object, path: str = "spec") -> list[str]:
    """The fields of an example that the API server does not store."""
    if isinstance(wanted, dict):
        fields = made if isinstance(made, dict) else {}
        return [part for key, value in wanted.items() for part in missing(value, fields.get(key), f"{path}.{key}")]
    if isinstance(wanted, list):
        if not isinstance(made, list) or len(made) != len(wanted):
            return [path]
        return [part for i, pair in enumerate(zip(wanted, made, strict=True)) for part in missing(*pair, f"{path}[{i}]")]
    return [] if wanted == made else [path]
