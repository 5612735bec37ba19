"""Runs the process that parses the configuration file."""

import base64
import pickle
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from thunderfleet_kubelet.answers import Answers
from thunderfleet_kubelet.config import Config, ConfigError, text_of

WORK = "thunderfleet_kubelet.configfile"


def load(file: Path | None, node_name: str, answers: Answers) -> Config:
    """Same as ``configfile.load``, in another process. ``node_name``: the Node's, if the file does not set it.

    Raises ConfigError.
    """
    order = {"text": text_of(file) if file else "", "where": str(file or "the defaults"), "node_name": node_name}
    return answers.done(WORK, order, _config)


def _config(answer: Mapping[str, Any]) -> Config:
    if "problem" in answer:
        raise ConfigError(answer["problem"])
    # Unpickling is safe: only this program writes answers, as the same user.
    config = pickle.loads(base64.b64decode(answer["config"]))
    if not isinstance(config, Config) or vars(config).keys() != {one.name for one in fields(Config)}:
        raise TypeError(f"the process returned {type(config).__name__}, not this version's settings")
    return config
