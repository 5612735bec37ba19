"""The answers of a batch, with the masks of one step computed together."""

from typing import Any

from thunderfleet_runner.rank.grammar import Mask, Step
from thunderfleet_runner.rank.mlxlm.generate import generate as _generate


class Answers(_generate.GenerationBatch):  # type: ignore[misc]  # mlx-lm has no types
    """mlx-lm's batch of answers. It calls logits processors row by row: the first mask computes those of all rows."""

    def _step(self) -> Any:
        masks = [
            (row, processor)
            for row, processors in enumerate(self.logits_processors or ())
            for processor in processors or ()
            if isinstance(processor, Mask)
        ]
        if masks:
            step = Step(masks, self._next_tokens)
            for _, mask in masks:
                mask.join(step)
        return super()._step()
