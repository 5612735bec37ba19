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
    """Where in its life a deployment is hit."""

    RENDEZVOUS = "before rendezvous"
    """Supervisors run and dial, the leader is not there yet."""
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
"""Stages in which one Mac is kept from starting its pod; no rank process runs yet."""


class Action(StrEnum):
    """What is done to the target."""

    KILL = "kill"
    """SIGKILL."""
    FREEZE = "freeze"
    """SIGSTOP, later SIGCONT."""
    CUT = "cut"
    """The LAN port or the cable without a carrier for a while."""


class Target(StrEnum):
    """What a fault hits."""

    RANK = "rank"
    SUPERVISOR = "supervisor"
    KUBELET = "kubelet"
    OPERATOR = "operator"
    """The replica that leads; to cut it off is to cut off its machine."""
    API_SERVER = "API server"
    MAC = "Mac"
    CABLE = "cable"


@dataclass(frozen=True)
class Fault:
    """One kind of fault."""

    action: Action
    target: Target

    def __str__(self) -> str:
        return f"{self.action.value} {self.target.value}"


PROCESSES = (Target.RANK, Target.SUPERVISOR, Target.KUBELET, Target.OPERATOR, Target.API_SERVER)
BESIDE = (Target.KUBELET, Target.OPERATOR, Target.API_SERVER)
"""Not part of a group: what happens to them must not be felt by a request that is being answered."""
FAULTS = (
    *(Fault(action, target) for action in (Action.KILL, Action.FREEZE) for target in PROCESSES),
    *(Fault(Action.CUT, target) for target in (Target.MAC, Target.CABLE, Target.OPERATOR)),
)


@dataclass(frozen=True)
class Shape:
    """Of a deployment: its ranks and what they talk over."""

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
"""How long what is not simply killed stays frozen, cut off or dead."""
LONG_SECONDS = 75
"""Longer than a silent Node stays Ready (50 s): the operator has to decide. Only of LONG_FAULTS, only when asked for."""
LONG_FAULTS = (Fault(Action.FREEZE, Target.KUBELET), Fault(Action.CUT, Target.MAC), Fault(Action.KILL, Target.KUBELET))


@dataclass(frozen=True)
class Step:
    """One fault: when, what, whose (a rank of the group), and for how long if it is undone at all."""

    stage: Stage
    fault: Fault
    rank: int
    seconds: int

    def __str__(self) -> str:
        return f"{self.stage.value}: {self.fault} (rank {self.rank}, {self.seconds} s)"


@dataclass(frozen=True)
class Episode:
    """One deployment from ``apply`` to nothing left; ``steps`` in the order of their stages."""

    number: int
    shape: Shape
    steps: tuple[Step, ...]


class Deck(Generic[T]):
    """Cards in an order of chance; when all were dealt they are shuffled again."""

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
    """Which ranks can be hit: not the one that is held back."""
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
