"""Which supervisors may join the group, and which have joined: the leader's pure state.

A connection that passed TLS holds the group's keys; this module decides whether it is the right supervisor of the right
placement. A refused claim is kept in ``refusals``, so that the group's state says why it waits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import RuntimeVariable

from thunderfleet_runner.net.peers import Hello, Refusal

VALUE_CHARACTERS = 64
"""Maximum characters of a variable in a message."""


@dataclass(frozen=True)
class Identity:
    """Versions, model and MLX's settings, which all supervisors of a group must have in common."""

    mlx: str
    mlx_lm: str
    digest: str
    environment: Mapping[str, str] = field(default_factory=dict)
    """MLX's environment variables that the rank gets."""


@dataclass(frozen=True)
class Rendezvous:
    """Members by rank, and the last refusal of each absent rank."""

    plan: Plan
    identity: Identity
    present: frozenset[int] = frozenset()
    refusals: dict[int, str] = field(default_factory=dict)

    def claim(self, hello: Hello) -> tuple["Rendezvous", Refusal | None]:
        """The state after a claim, and the refusal when it is not accepted."""
        refusal = self._placement(hello) or self._rank(hello) or self._software(hello)
        if refusal is None:
            rest = {rank: text for rank, text in self.refusals.items() if rank != hello.rank}
            return replace(self, present=self.present | {hello.rank}, refusals=rest), None
        if 0 < hello.rank < self.plan.world_size and hello.rank not in self.present:
            return replace(self, refusals={**self.refusals, hello.rank: refusal.explanation}), refusal
        return self, refusal

    def leave(self, rank: int) -> "Rendezvous":
        """The state after the member of ``rank`` has gone."""
        return replace(self, present=self.present - {rank})

    def _placement(self, hello: Hello) -> Refusal | None:
        plan = self.plan
        if (hello.uid, hello.index) != (plan.uid, plan.index):
            text = f"rank 0 leads group {plan.uid}/{plan.index}, not {hello.uid}/{hello.index}"
            return Refusal(reason=Reason.STRANGER, message=text)
        if hello.epoch != plan.epoch:
            stale = "stale" if hello.epoch < plan.epoch else "newer"
            text = f"epoch {hello.epoch} is {stale}, rank 0 is in epoch {plan.epoch}"
            return Refusal(reason=Reason.STALE_EPOCH, message=text)
        return None

    def _rank(self, hello: Hello) -> Refusal | None:
        plan, rank = self.plan, hello.rank
        if not 0 < rank < plan.world_size:
            text = f"rank {rank} cannot join: the group expects ranks 1 to {plan.world_size - 1}"
            return Refusal(reason=Reason.NO_SUCH_RANK, message=text)
        if hello.node != plan.ranks[rank].node:
            text = f"rank {rank} is planned on node {plan.ranks[rank].node}, not on {hello.node}"
            return Refusal(reason=Reason.WRONG_NODE, message=text)
        if rank in self.present:
            return Refusal(reason=Reason.RANK_TAKEN, message=f"an earlier process of rank {rank} is still connected")
        return None

    def _software(self, hello: Hello) -> Refusal | None:
        mine = self.identity
        for name, theirs, ours in (("mlx", hello.mlx, mine.mlx), ("mlx-lm", hello.mlx_lm, mine.mlx_lm)):
            if theirs != ours:
                text = f"rank {hello.rank} runs {name} {theirs}, rank 0 runs {ours}: use the same image on both Macs"
                return Refusal(reason=Reason.VERSION_DIFFERS, message=text)
        if hello.digest and mine.digest and hello.digest != mine.digest:
            return Refusal(reason=Reason.MODEL_DIFFERS, message=model_differs(self.plan, hello.rank))
        if hello.environment is not None and (text := self._settings_differ(hello.rank, hello.environment)):
            return Refusal(reason=Reason.ENVIRONMENT_DIFFERS, message=text)
        return None

    def _settings_differ(self, rank: int, theirs: Mapping[str, str]) -> str:
        """Which of MLX's settings are not the same as on rank 0; empty if all are."""
        ours = self.identity.environment
        here, there = f"{self.plan.ranks[0].node} (rank 0)", f"{self.plan.ranks[rank].node} (rank {rank})"
        differ = [
            f"{name} is {_value(ours.get(name))} on {here} and {_value(theirs.get(name))} on {there}"
            for name in RuntimeVariable
            if ours.get(name) != theirs.get(name)
        ]
        advice = "set it in spec.runtime.env for all ranks, or remove it from the image or the pod"
        return f"{'; '.join(differ)}: {advice}" if differ else ""


def _value(value: str | None) -> str:
    return "not set" if value is None else f'"{value[:VALUE_CHARACTERS]}"'


def model_differs(plan: Plan, rank: int) -> str:
    """The message for a rank whose model is not the one of rank 0."""
    return (
        f"the model in {plan.model_path} on {plan.ranks[rank].node} is not the one on {plan.ranks[0].node}: "
        "its configuration, tokenizer files or tensors differ; download the same revision to both"
    )


def weights_differ(plan: Plan, rank: int) -> str:
    """The message for a rank whose weights have other values than those of rank 0."""
    return (
        f"the weights in {plan.model_path} on {plan.ranks[rank].node} have other values than those on {plan.ranks[0].node}, "
        "although their names and shapes are the same: download the same revision to both"
    )
