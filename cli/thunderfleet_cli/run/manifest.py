"""The ModelDeployment of ``thunderfleet run``. Pure."""

import re
from typing import Any

from thunderfleet_crds.names import API_VERSION, MAX_NAME_LENGTH, MODELDEPLOYMENT_KIND

Json = dict[str, Any]


def name_for(model: str) -> str:
    """A name for the ModelDeployment of ``model`` (``organization/name``); empty if no character of it is usable."""
    text = re.sub(r"[^a-z0-9]+", "-", model.rpartition("/")[2].lower()).strip("-")
    text = re.sub(r"^[^a-z]+", "", text)
    return text[:MAX_NAME_LENGTH].strip("-")


def manifest(namespace: str, name: str, model: str) -> Json:
    """The ModelDeployment: the model, and defaults for everything else."""
    return {
        "apiVersion": API_VERSION,
        "kind": MODELDEPLOYMENT_KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"model": {"repository": model}},
    }


def model_of(deployment: Json) -> str:
    """The model that a ModelDeployment serves."""
    return str(deployment["spec"]["model"].get("repository"))
