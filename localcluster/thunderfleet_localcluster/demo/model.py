"""The demo's model and its questions. Only this module determines the model."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from thunderfleet_localcluster.models import demo_model
from thunderfleet_localcluster.models.demo_model.conversations import DEMO_QUESTIONS


@dataclass(frozen=True)
class DemoModel:
    """A model: its repository in examples/tiny.yaml, a function that writes its files, questions, tokens per answer."""

    repository: str
    install: Callable[[Path], None]
    questions: tuple[str, str, str]
    tokens: int


def the_model() -> DemoModel:
    """The model that the demo serves."""
    return DemoModel(demo_model.REPOSITORY, demo_model.install, DEMO_QUESTIONS, demo_model.ANSWER_TOKENS)
