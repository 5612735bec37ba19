"""What an earlier agent of this Mac has published of what takes long to find out, until this one has found out itself.

Sizing a disk full of models takes minutes. An agent that was restarted would first take all that away and then say the same
again, and whoever places groups would see a Mac without models meanwhile. Pure.
"""

from __future__ import annotations

from dataclasses import replace

from thunderfleet_crds.nodeprofile import Model, NodeProfile, Runtime

from thunderfleet_agent.observe.facts import Facts, Source


class Recall:
    """One value an agent. What this agent knows by itself is never asked of the past again."""

    def __init__(self) -> None:
        self._runtime: Runtime | None = None
        self._models: dict[str, Model] = {}

    def begin(self, earlier: NodeProfile | None) -> None:
        """Starts from the profile as the first look shows it."""
        if earlier is not None:
            self._runtime = earlier.status.runtime
            self._models = {model.path: model for model in earlier.status.models}

    def beside(self, facts: Facts) -> Facts:
        """The facts, with what has not been looked at yet as it was known before."""
        if facts.runtime is not None or Source.RUNTIME in facts.failures:
            self._runtime = None
        if facts.models is None:
            models = tuple(self._models.values()) or None
        else:
            models = tuple(self._sized(model) for model in facts.models)
        return replace(facts, runtime=facts.runtime or self._runtime, models=models)

    def _sized(self, model: Model) -> Model:
        known = self._models.get(model.path)
        if known is None:
            return model
        same = (known.bytes, known.revision, known.architecture) == (model.bytes, model.revision, model.architecture)
        if model.sized_by is not None or model.problem is not None or not same:
            del self._models[model.path]
            return model
        return known
