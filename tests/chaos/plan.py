"""What a seed means: fleets, deployments, and which fault hits which of their stages. Pure: a seed always means the same.

Faults are dealt from shuffled decks, so that a long run meets every fault at every stage before it meets one again. A
deployment takes one card for its start, one for when it serves and one for its end.
"""

import random
from collections.abc import Iterator, Sequence
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
    """The kind of fault. All but LOSE and MOVE are undone after a while."""

    KILL = "kill"
    """SIGKILL."""
    FREEZE = "freeze"
    """SIGSTOP, later SIGCONT."""
    CUT = "cut"
    """A LAN port or cable has no carrier. A kubelet or API server: machines have no route to the API server."""
    SLOW = "slow"
    """The program is stopped most of the time, so that every answer is late."""
    STARVE = "starve"
    """The program can open hardly any more files and sockets."""
    FILL = "fill"
    """The disk with the program's state is full."""
    AHEAD = "set ahead"
    """The clock of the machine, by an hour."""
    BACK = "set back"
    MOVE = "move"
    """The Mac gets another address in the LAN, and keeps it."""
    LOSE = "lose"
    """What is lost stays away until the deployment serves without it, or its status shows what is lost and what to do."""
    UPDATE = "update"
    """Every instance is replaced, one after the other, as an upgrade does. Clients must not notice."""


class Target(StrEnum):
    """The target of a fault."""

    RANK = "rank"
    SUPERVISOR = "supervisor"
    INTAKE = "intake"
    KUBELET = "kubelet"
    AGENT = "agent"
    OPERATOR = "operator"
    """The leader; cutting it off means cutting off its machine."""
    API_SERVER = "API server"
    ETCD = "etcd"
    SCHEDULER = "scheduler"
    CONTROLLER_MANAGER = "controller manager"
    MAC = "Mac"
    CABLE = "cable"


@dataclass(frozen=True)
class Fault:
    """One kind of fault and its target."""

    action: Action
    target: Target

    def __str__(self) -> str:
        return f"{self.action.value} {self.target.value}"

    @property
    def beside(self) -> bool:
        """Whether it hits nothing of a group: running requests must not notice it."""
        return self.target in BESIDE and self.action is not Action.LOSE

    def touches_mac(self, seconds: int) -> bool:
        """Whether a fault of this length may restart every group on its Mac, also one that it is not meant for."""
        silent = self.target is Target.KUBELET and (self.action is Action.LOSE or seconds > SILENT_SECONDS)
        return self.target is Target.MAC or silent


PROGRAMS = tuple(target for target in Target if target not in (Target.MAC, Target.CABLE))
BESIDE = tuple(target for target in PROGRAMS if target not in (Target.RANK, Target.SUPERVISOR, Target.INTAKE))
"""Programs outside a group."""
FAULTS = (
    *(Fault(action, target) for action in (Action.KILL, Action.FREEZE) for target in PROGRAMS),
    *(Fault(Action.CUT, target) for target in (Target.MAC, Target.CABLE, Target.OPERATOR, Target.KUBELET, Target.API_SERVER)),
    *(Fault(Action.SLOW, target) for target in (Target.API_SERVER, Target.ETCD)),
    *(Fault(Action.STARVE, target) for target in (Target.KUBELET, Target.AGENT, Target.SUPERVISOR)),
    *(Fault(Action.FILL, target) for target in (Target.MAC, Target.ETCD)),
    *(Fault(action, target) for action in (Action.AHEAD, Action.BACK) for target in (Target.MAC, Target.OPERATOR)),
    Fault(Action.MOVE, Target.MAC),
    *(Fault(Action.LOSE, target) for target in (Target.MAC, Target.CABLE, Target.KUBELET)),
    *(Fault(Action.UPDATE, target) for target in (Target.KUBELET, Target.AGENT, Target.OPERATOR)),
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
FLEETS = (2, 3, 4, 5, 6)
"""Numbers of Macs."""
EPISODES_PER_FLEET = 4
SECONDS = (2, 5, 12)
"""How long a target stays frozen, cut off or switched off."""
STATE_SECONDS = (12, 25)
"""The same for faults that are noticed only when something is written, opened or asked."""
STATES = (Action.SLOW, Action.STARVE, Action.FILL, Action.AHEAD, Action.BACK)
SILENT_SECONDS = 45
"""A Node that is silent for longer may become NotReady, so that its groups move."""
LONG_SECONDS = 75
"""Longer than a silent Node stays Ready (50 s), so that the operator must act. Only for LONG_FAULTS, and only on request."""
LONG_FAULTS = (
    Fault(Action.FREEZE, Target.KUBELET),
    Fault(Action.CUT, Target.MAC),
    Fault(Action.KILL, Target.KUBELET),
    Fault(Action.CUT, Target.KUBELET),
)
TWO_AT_ONCE = 0.2
"""The share of steps with a second fault."""


@dataclass(frozen=True)
class Blow:
    """A fault, and the rank whose Mac or process it hits."""

    fault: Fault
    rank: int

    def __str__(self) -> str:
        return f"{self.fault} (rank {self.rank})"


@dataclass(frozen=True)
class Step:
    """One fault, or two at once: the stage, and how long what is undone lasts."""

    stage: Stage
    blows: tuple[Blow, ...]
    seconds: int

    def __str__(self) -> str:
        return f"{self.stage.value}: {self.faults}, {self.seconds} s"

    @property
    def faults(self) -> str:
        return " and ".join(map(str, self.blows))

    @property
    def beside(self) -> bool:
        """Whether no blow hits the group."""
        return all(blow.fault.beside for blow in self.blows)

    def does(self, action: Action) -> bool:
        return any(blow.fault.action is action for blow in self.blows)


@dataclass(frozen=True)
class Episode:
    """One deployment from ``apply`` to its removal; ``steps`` are in the order of their stages. ``macs``: of its fleet."""

    number: int
    macs: int
    shape: Shape
    steps: tuple[Step, ...]

    @property
    def fleet(self) -> int:
        """Episodes of one number share a cluster."""
        return self.number // EPISODES_PER_FLEET


class Deck(Generic[T]):
    """A shuffled deck of cards; it is shuffled again when all cards have been dealt."""

    def __init__(self, cards: tuple[T, ...], chance: random.Random) -> None:
        self._cards, self._chance, self._left = cards, chance, list[T]()

    def deal(self) -> T:
        if not self._left:
            self._left = self._chance.sample(self._cards, len(self._cards))
        return self._left.pop()


def possible(stage: Stage, fault: Fault) -> bool:
    """Whether there is something to hit at this stage."""
    match fault:
        case Fault(_, Target.RANK):
            return stage not in HELD
        case Fault(_, Target.INTAKE):
            # A group that takes no requests has none.
            return stage in SERVING
        case Fault(Action.LOSE, _):
            # Pods of a Mac that stays away are not force-deleted, so nothing ends.
            return stage is not Stage.DRAINING
        case Fault(Action.UPDATE, _):
            return stage in SERVING
    return True


def cards(stages: tuple[Stage, ...]) -> tuple[tuple[Stage, Fault], ...]:
    """Every fault that there can be at these stages."""
    return tuple((stage, fault) for stage in stages for fault in FAULTS if possible(stage, fault))


def victims(stage: Stage, ranks: int) -> range:
    """The ranks that can be hit; the one that is held back cannot."""
    match stage:
        case Stage.RENDEZVOUS:
            return range(1, ranks)
        case Stage.BARRIER:
            return range(ranks - 1)
    return range(ranks)


def seconds(fault: Fault, long: bool, chance: random.Random) -> int:
    """How long a fault lasts."""
    drawn, extended = chance.choice(STATE_SECONDS if fault.action in STATES else SECONDS), chance.random() < 0.3
    return LONG_SECONDS if long and extended and fault in LONG_FAULTS else drawn


def _blow(fault: Fault, rank: int) -> Blow:
    # The gateway, and with it the intake, is on rank 0.
    return Blow(fault, 0 if fault.target is Target.INTAKE else rank)


def _step(stage: Stage, fault: Fault, ranks: int, long: bool, chance: random.Random) -> Step:
    reach = victims(stage, ranks)
    blows = [_blow(fault, chance.choice(reach))]
    lasts = seconds(fault, long, chance)
    alone = (Action.LOSE, Action.UPDATE)
    others = [
        other for other in FAULTS if possible(stage, other) and other.target is not fault.target and other.action not in alone
    ]
    second, rank = chance.choice(others), chance.choice(reach)
    if chance.random() < TWO_AT_ONCE and fault.action not in alone:
        blows.append(_blow(second, rank))
    return Step(stage, tuple(blows), lasts)


def episodes(seed: int, long: bool = False) -> Iterator[Episode]:
    """The endless sequence of a seed. With ``long`` some faults last until the operator must act."""
    chance = random.Random(seed)
    fleets = Deck(FLEETS, chance)
    shapes = {macs: Deck(tuple(shape for shape in SHAPES if shape.ranks <= macs), chance) for macs in FLEETS}
    decks = [Deck(cards(stages), chance) for stages in (START, SERVING, (Stage.DRAINING,))]
    macs = 0
    for number in count():
        if number % EPISODES_PER_FLEET == 0:
            macs = fleets.deal()
        shape = shapes[macs].deal()
        steps = tuple(_step(*deck.deal(), shape.ranks, long, chance) for deck in decks)
        yield Episode(number, macs, shape, steps)


def named(kinds: Sequence[str]) -> Episode:
    """Faults by their names, one after the other, while a deployment on three Macs serves streams. Raises ValueError."""
    known = {str(fault): fault for fault in FAULTS}
    if unknown := [kind for kind in kinds if kind not in known]:
        raise ValueError(f"there is no fault {unknown[0]!r}; there are: {', '.join(sorted(known))}")
    steps = [
        Step(Stage.STREAMS, (_blow(known[kind], 1),), STATE_SECONDS[0] if known[kind].action in STATES else SECONDS[-1])
        for kind in kinds
    ]
    return Episode(0, 3, Shape(2, "Ring"), tuple(steps))


def first(seed: int, faults: int, long: bool = False) -> list[Episode]:
    """As many episodes as it takes for ``faults`` steps."""
    return list(islice(episodes(seed, long), -(-faults // 3)))
