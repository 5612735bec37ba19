"""What a seed means: deployments, and which fault hits which of their stages. Pure: the same seed gives the same sequence.

Faults are dealt from shuffled decks, so that a long run meets every fault at every stage before it meets one again. A
deployment takes one card for its start, one for when it serves and one for its end.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import count, islice
from typing import Generic, TypeVar

T = TypeVar("T")


class Stage(StrEnum):
    """The stage of a deployment at which a fault hits it."""

    RENDEZVOUS = "before rendezvous"
    """Supervisors run and dial; the leader does not listen yet."""
    BARRIER = "in the barrier"
    """The leader waits for the last rank."""
    INIT = "in init"
    LOADING = "loading"
    IDLE = "serving idle"
    STREAMS = "serving streams"
    BENCHMARK = "benchmarking"
    DRAINING = "draining"


START = (Stage.RENDEZVOUS, Stage.BARRIER, Stage.INIT, Stage.LOADING)
SERVING = (Stage.IDLE, Stage.STREAMS, Stage.BENCHMARK)
HELD = (Stage.RENDEZVOUS, Stage.BARRIER)
"""Stages in which one Mac's kubelet waits, so no rank process runs yet."""


class Action(StrEnum):
    """The kind of fault."""

    KILL = "kill"
    """SIGKILL."""
    FREEZE = "freeze"
    """SIGSTOP, later SIGCONT."""
    CUT = "cut"
    """The LAN port or the cable loses its carrier for a while."""


class Target(StrEnum):
    """The target of a fault."""

    RANK = "rank"
    SUPERVISOR = "supervisor"
    KUBELET = "kubelet"
    OPERATOR = "operator"
    """The leader; cutting it off means cutting off its machine."""
    API_SERVER = "API server"
    MAC = "Mac"
    CABLE = "cable"


@dataclass(frozen=True)
class Fault:
    """One kind of fault and its target."""

    action: Action
    target: Target

    def __str__(self) -> str:
        return f"{self.action.value} {self.target.value}"


PROCESSES = (Target.RANK, Target.SUPERVISOR, Target.KUBELET, Target.OPERATOR, Target.API_SERVER)
BESIDE = (Target.KUBELET, Target.OPERATOR, Target.API_SERVER)
"""Targets outside a group: their faults must not affect running requests."""
FAULTS = (
    *(Fault(action, target) for action in (Action.KILL, Action.FREEZE) for target in PROCESSES),
    *(Fault(Action.CUT, target) for target in (Target.MAC, Target.CABLE, Target.OPERATOR)),
)


@dataclass(frozen=True)
class Shape:
    """Shape of a deployment: its ranks and their transport."""

    ranks: int
    transport: str

    @property
    def parallelism(self) -> str:
        """The test model has heads for two shards, not for three."""
        return "Tensor" if self.ranks == 2 else "Pipeline"

    def __str__(self) -> str:
        return f"{self.ranks} ranks, {self.transport}"


SHAPES = tuple(Shape(ranks, transport) for ranks in (2, 3, 4) for transport in ("Ring", "JACCL"))
SECONDS = (2, 5, 12)
"""How long a target stays frozen, cut off or switched off."""
LONG_SECONDS = 75
"""Longer than a silent Node stays Ready (50 s), so that the operator must act. Only for LONG_FAULTS, and only on request."""
LONG_FAULTS = (Fault(Action.FREEZE, Target.KUBELET), Fault(Action.CUT, Target.MAC), Fault(Action.KILL, Target.KUBELET))


@dataclass(frozen=True)
class Step:
    """One fault: its stage, kind and target rank, and how long it lasts if it is undone."""

    stage: Stage
    fault: Fault
    rank: int
    seconds: int

    def __str__(self) -> str:
        return f"{self.stage.value}: {self.fault} (rank {self.rank}, {self.seconds} s)"


@dataclass(frozen=True)
class Episode:
    """One deployment from ``apply`` to its removal; ``steps`` are in the order of their stages."""

    number: int
    shape: Shape
    steps: tuple[Step, ...]


class Deck(Generic[T]):
    """A shuffled deck of cards; it is shuffled again when all cards have been dealt."""

    def __init__(self, cards: tuple[T, ...], chance: random.Random) -> None:
        self._cards, self._chance, self._left = cards, chance, list[T]()

    def deal(self) -> T:
        if not self._left:
            self._left = self._chance.sample(self._cards, len(self._cards))
        return self._left.pop()


def cards(stages: tuple[Stage, ...]) -> tuple[tuple[Stage, Fault], ...]:
    """Every fault that there can be at these stages."""
    return tuple((stage, fault) for stage in stages for fault in FAULTS if not (stage in HELD and fault.target is Target.RANK))


def victims(stage: Stage, ranks: int) -> range:
    """The ranks that can be hit; the one that is held back cannot."""
    match stage:
        case Stage.RENDEZVOUS:
            return range(1, ranks)
        case Stage.BARRIER:
            return range(ranks - 1)
    return range(ranks)


def episodes(seed: int, long: bool = False, shapes: tuple[Shape, ...] = SHAPES) -> Iterator[Episode]:
    """The endless sequence of a seed. With ``long`` some faults last until the operator must act."""
    chance = random.Random(seed)
    shape_deck = Deck(shapes, chance)
    decks = [Deck(cards(stages), chance) for stages in (START, SERVING, (Stage.DRAINING,))]
    for number in count():
        shape = shape_deck.deal()
        steps = []
        for deck in decks:
            stage, fault = deck.deal()
            rank, seconds = chance.choice(victims(stage, shape.ranks)), chance.choice(SECONDS)
            if long and fault in LONG_FAULTS and chance.random() < 0.3:
                seconds = LONG_SECONDS
            steps.append(Step(stage, fault, rank, seconds))
        yield Episode(number, shape, tuple(steps))


def first(seed: int, faults: int, long: bool = False, shapes: tuple[Shape, ...] = SHAPES) -> list[Episode]:
    """As many episodes as it takes to inject ``faults`` faults."""
    return list(islice(episodes(seed, long, shapes), -(-faults // 3)))
