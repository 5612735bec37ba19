"""Kubeconfig files: whatever is wrong with the content of one is a ConfigException."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.config.kube_config import list_kube_config_contexts

from thunderfleet_lib.host import yamltext


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """For code that reads a kubeconfig. Raises ConfigException, or OSError if the file cannot be read."""
    try:
        with yamltext.parsing():
            yield
    except yamltext.InvalidYamlError as error:
        raise ConfigException(str(error)) from None


def contexts(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """All contexts, and the current one. Raises ConfigException and OSError."""
    with reading():
        every, active = list_kube_config_contexts(config_file=str(path))
        return list(every), dict(active)
