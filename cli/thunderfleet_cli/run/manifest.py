"""The ModelDeployment of ``thunderfleet run``. Pure."""

import re
from typing import Any

from thunderfleet_crds.names import API_VERSION, MAX_NAME_LENGTH, MODELDEPLOYMENT_KIND

Json = dict[str, Any]


def name_for(model: str) -> str:
    """A name for the ModelDeployment of ``model`` (``organization/name`` or a URI); empty if no character is usable."""
    text = re.sub(r"[^a-z0-9]+", "-", model.rstrip("/").rpartition("/")[2].lower()).strip("-")
    text = re.sub(r"^[^a-z]+", "", text)
    return text[:MAX_NAME_LENGTH].strip("-")


def manifest(namespace: str, name: str, model: str, sha256: str | None = None) -> Json:
    """The ModelDeployment: the model, and defaults for everything else. ``sha256``: of a URI's file SHA256SUMS."""
    source = {"repository": model} if sha256 is None else {"uri": model, "sha256": sha256}
    return {
        "apiVersion": API_VERSION,
        "kind": MODELDEPLOYMENT_KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"model": source},
    }


def model_of(deployment: Json) -> str:
    """The model that a ModelDeployment serves: a repository or a URI."""
    model = deployment["spec"]["model"]
    return str(model.get("repository") or model.get("uri"))
