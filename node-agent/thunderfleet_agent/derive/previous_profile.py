"""Models and runtime from the profile that an earlier agent of this Mac published, until this agent has observed them itself.

Sizing all models on a disk takes minutes. Without this, a restarted agent would remove them from the profile and publish them
again later, and placement would see a Mac without models in between.
"""

from __future__ import annotations

from dataclasses import replace

from thunderfleet_crds.kinds.nodeprofile import Model, NodeProfile, Runtime

from thunderfleet_agent.observe.facts import Facts, Source


class PreviousProfile:
    """Values of the earlier profile that this agent has not observed yet. One value per agent."""

    def __init__(self) -> None:
        self._loaded = False
        self._runtime: Runtime | None = None
        self._models: dict[str, Model] = {}

    def load(self, earlier: NodeProfile | None) -> None:
        """Takes the profile as it is at the start. Only the first call has an effect."""
        if self._loaded:
            return
        self._loaded = True
        if earlier is not None:
            self._runtime = earlier.status.runtime
            self._models = {model.path: model for model in earlier.status.models}

    def fill(self, facts: Facts) -> Facts:
        """The facts, with the earlier values of those that are still unknown."""
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
