"""Who may be in the group, and who is: the leader's pure state.

A connection that passed TLS holds the group's keys; that it is the right supervisor of the right placement is decided here.
A claim that is refused leaves a trace (``refusals``), so that the waiting side of a misconfigured pair is told why it waits.
"""

from dataclasses import dataclass, field, replace

from thunderfleet_crds.plan import Plan

from thunderfleet_runner.net.peers import Hello, Refusal


@dataclass(frozen=True)
class Identity:
    """What all supervisors of a group must have in common."""

    mlx: str
    mlx_lm: str
    digest: str


@dataclass(frozen=True)
class Rendezvous:
    """Members by rank, and the last refusal of each rank that is not there."""

    plan: Plan
    identity: Identity
    present: frozenset[int] = frozenset()
    refusals: dict[int, str] = field(default_factory=dict)

    @property
    def absent(self) -> tuple[int, ...]:
        return tuple(entry.rank for entry in self.plan.ranks if entry.rank not in self.present)

    def claim(self, hello: Hello) -> tuple["Rendezvous", Refusal | None]:
        """The state after a claim, and the refusal when it is not accepted."""
        refusal = self._judge(hello)
        if refusal is None:
            rest = {rank: text for rank, text in self.refusals.items() if rank != hello.rank}
            return replace(self, present=self.present | {hello.rank}, refusals=rest), None
        if 0 < hello.rank < self.plan.world_size and hello.rank not in self.present:
            return replace(self, refusals={**self.refusals, hello.rank: refusal.message}), refusal
        return self, refusal

    def leave(self, rank: int) -> "Rendezvous":
        return replace(self, present=self.present - {rank})

    def _judge(self, hello: Hello) -> Refusal | None:
        plan, mine = self.plan, self.identity
        if (hello.uid, hello.index) != (plan.uid, plan.index):
            return Refusal(
                reason="Stranger",
                message=f"this is group {plan.uid}/{plan.index}, not {hello.uid}/{hello.index}",
            )
        if hello.epoch != plan.epoch:
            stale = "stale" if hello.epoch < plan.epoch else "newer"
            return Refusal(
                reason="StaleEpoch",
                message=f"placement epoch {hello.epoch} is {stale}: this supervisor carries out epoch {plan.epoch}",
            )
        if not 0 < hello.rank < plan.world_size:
            return Refusal(
                reason="NoSuchRank", message=f"rank {hello.rank} cannot join: ranks 1 to {plan.world_size - 1} are awaited"
            )
        entry = plan.ranks[hello.rank]
        if hello.node != entry.node:
            return Refusal(
                reason="WrongNode", message=f"rank {hello.rank} is planned on node {entry.node}, not on {hello.node}"
            )
        if hello.rank in self.present:
            return Refusal(reason="RankTaken", message=f"rank {hello.rank} is claimed by a supervisor that is still connected")
        for name, theirs, ours in (("mlx", hello.mlx, mine.mlx), ("mlx-lm", hello.mlx_lm, mine.mlx_lm)):
            if theirs != ours:
                return Refusal(reason="VersionDiffers", message=f"rank {hello.rank} runs {name} {theirs}, rank 0 runs {ours}")
        if hello.digest and mine.digest and hello.digest != mine.digest:
            return Refusal(
                reason="ModelDiffers",
                message=f"the model in {plan.model_path} on {entry.node} is not the one on {plan.ranks[0].node} "
                "(configuration, tokenizer files or tensors differ)",
            )
        return None
