"""Reports of the ranks about their models and Macs in the current attempt, and whether these are consistent.

Pure but for its state; the leader sends the requests and acts.
"""

from thunderfleet_crds.exchange.group import VerifiedReport
from thunderfleet_crds.exchange.plan import KnownWeights, Plan, RecordedAnswer
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import FaultClass, Verify

from thunderfleet_runner import faults
from thunderfleet_runner.api.passages import Answers
from thunderfleet_runner.faults import Fault
from thunderfleet_runner.group.decide import answers, verification
from thunderfleet_runner.group.decide.attempts import StateMachine
from thunderfleet_runner.group.decide.rendezvous import Identity, model_differs, weights_differ
from thunderfleet_runner.net import peers


class Evidence:
    """``recorded``: answers to the test prompt from before, of this placement and of earlier ones.

    ``others``: versions of other libraries that affect the test prompt and its tokens.
    """

    def __init__(
        self, plan: Plan, identity: Identity, recorded: tuple[RecordedAnswer, ...], others: tuple[str, ...] = ()
    ) -> None:
        self._plan = plan
        self._versions = (identity.mlx, identity.mlx_lm, *others)
        self._before: dict[str, RecordedAnswer] = {one.key: one for one in (*recorded, *plan.recorded_answers)}
        self.recorded: RecordedAnswer | None = None
        """The answer to the test prompt with the present weights, once it is known what it depends on."""
        self.begin()

    def begin(self) -> None:
        """The next attempt begins."""
        self._digests: dict[int, str] = {}
        self._weights: dict[int, tuple[str, str]] = {}
        """By rank, signature and hash of its copy of the weights."""
        self._proved: dict[int, verification.Proved] = {}
        self._products: dict[int, peers.Products] = {}
        self._kinds: dict[int, int] = {}
        self._answer: peers.RankReady | None = None
        """Rank 0's answer to the test prompt."""

    @property
    def digest(self) -> str:
        """Digest of rank 0's copy of the model, without the values of the weights."""
        return self._digests.get(0, "")

    def checked(self, rank: int, report: peers.Checked) -> Fault | None:
        """The preflight of a rank has passed. Returns the fault when its model differs from rank 0's."""
        self._digests[rank] = report.digest
        self._weights[rank] = (report.signature, report.weights)
        return self._model_differs(rank) or self._weights_differ(rank)

    def proved(self, rank: int, report: peers.RankProved) -> None:
        """A rank's connections carry values unchanged."""
        self._proved[rank] = verification.Proved(report.exchanges, report.seconds)

    def loaded(self, rank: int, products: peers.Products) -> None:
        """A rank has loaded, and computed right."""
        self._products[rank] = products

    def answered(self, rank: int, report: peers.RankReady) -> Fault | None:
        """A rank has answered the test prompt. Returns the fault when the answer is not that of earlier groups."""
        self._kinds[rank] = report.kind
        if rank == 0:
            self._answer = report
        return self._answer_differs()

    def read(self, rank: int, report: peers.WeightsRead) -> Fault | None:
        """The values of a copy are known, while the group serves."""
        self._weights[rank] = (report.signature, report.weights)
        return self._weights_differ(rank) or self._answer_differs()

    def report(self, machine: StateMachine, passages: Answers, fit: tuple[int, ...]) -> VerifiedReport:
        """What rank 0 reports of the group's checks."""
        copies = tuple(
            KnownWeights(node=self._plan.ranks[rank].node, signature=signature, digest=digest)
            for rank, (signature, digest) in sorted(self._weights.items())
            if digest
        )
        proofs = verification.Proofs(self._proved, self._products, passages, fit)
        found = verification.verified(self._plan, machine, proofs)
        return found.model_copy(update={"weights": copies, "recorded": self.recorded})

    def _model_differs(self, rank: int) -> Fault | None:
        other = _other(rank, self._digests)
        return _differs(model_differs(self._plan, other)) if other is not None else None

    def _weights_differ(self, rank: int) -> Fault | None:
        other = _other(rank, {one: digest for one, (_, digest) in self._weights.items()})
        return _differs(weights_differ(self._plan, other)) if other is not None else None

    def _answer_differs(self) -> Fault | None:
        """The first answer under some conditions is recorded, later ones are compared with it."""
        known = {digest for _, digest in self._weights.values()}
        size = self._plan.world_size
        complete = len(self._weights) == len(self._kinds) == size and len(known) == 1 and "" not in known
        if self._plan.verify is not Verify.FULL or self._answer is None or not complete:
            return None
        answer = self._answer
        key = answers.key(self._plan, self.digest, known.pop(), self._kinds, self._versions)
        now = answers.record(key, answer.tokens, answer.costs, answer.margins)
        self.recorded = self._before.setdefault(key, now)
        what = answers.differs(self.recorded, now)
        return faults.output_wrong(what) if what is not None else None


def _other(rank: int, digests: dict[int, str]) -> int | None:
    """The first rank whose digest differs from rank 0's, if ``rank`` is one of the two. Unknown digests count as equal."""
    mine = digests.get(0, "")
    unlike = (other for other, theirs in sorted(digests.items()) if mine and theirs and theirs != mine and rank in (0, other))
    return next(unlike, None)


def _differs(text: str) -> Fault:
    return Fault(FaultClass.CONFIGURE, Reason.MODEL_DIFFERS, text)
