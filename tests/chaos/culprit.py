"""Whether what a user sees of a fault names its culprit: the Mac, cable, program or pod that was hit. Pure."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tests.chaos.plan import Action, Fault, Target

Json = dict[str, Any]


class Channel(StrEnum):
    """Where a user looks."""

    WHY = "why"
    """The cause that ``kubectl thunderfleet why`` prints, or its error."""
    STATUS = "status"
    """The problems that ``kubectl thunderfleet status`` prints, or its error."""
    PAGE = "page"
    """What the live page shows of Macs, cables and models that have a problem, and its notes."""
    CONDITION = "condition"
    """Conditions of the ModelDeployment that say that something is wrong."""
    ALERT = "alert"
    """Alerts that fire, without the time that a problem must last."""
    AFTERWARDS = "afterwards"
    """All steps of ``why`` once the deployment serves again: what a user sees who looks late."""


@dataclass(frozen=True)
class Look:
    """What a user saw, ``after`` so many seconds. ``texts``: by channel."""

    after: float
    texts: Mapping[Channel, tuple[str, ...]]

    def as_json(self) -> Json:
        return {"after": round(self.after, 1), **{channel.value: list(texts) for channel, texts in self.texts.items()}}

    @classmethod
    def read(cls, found: Json) -> "Look":
        """The inverse of ``as_json``."""
        return cls(found["after"], {Channel(name): tuple(texts) for name, texts in found.items() if name != "after"})

    @property
    def quiet(self) -> bool:
        """Whether nothing seems to be wrong."""
        return not any(texts for channel, texts in self.texts.items() if channel is not Channel.AFTERWARDS)


@dataclass(frozen=True)
class Culprit:
    """What was hit. A text names it if all patterns of one of the alternatives are found in it."""

    fault: str
    alternatives: tuple[tuple[str, ...], ...]

    def named(self, text: str) -> bool:
        return any(all(re.search(word, text, re.IGNORECASE) for word in words) for words in self.alternatives)

    def first(self, looks: Iterable[Look], channel: Channel) -> float | None:
        """After how many seconds a user could first read in this channel what was hit; None: never."""
        found = (look.after for look in looks if any(self.named(text) for text in look.texts.get(channel, ())))
        return next(found, None)


Words = tuple[tuple[str, ...], ...]
"""Alternatives; see ``Culprit``."""
PROGRAMS: Mapping[Target, Words] = {
    Target.INTAKE: ((r"\bintake\b|process that reads (and tokenizes )?requests",),),
    Target.OPERATOR: ((r"\boperator\b",),),
    Target.API_SERVER: ((r"\bapi[ -]?server\b",),),
    Target.ETCD: ((r"\betcd\b",),),
    Target.SCHEDULER: ((r"scheduler\b",),),
    Target.CONTROLLER_MANAGER: ((r"controller.manager",),),
}
"""How programs are named that are on no Mac."""


def culprit(fault: Fault, node: str, neighbor: str, rank: int, pod: str = "") -> Culprit | None:
    """``pod``: the pod of the rank. None for what is no fault."""
    if fault.action is Action.UPDATE:
        return None
    mac, other = rf"\b{re.escape(node)}\b", re.escape(neighbor)
    first = re.escape(node)
    of_pod: Words = ((rf"\b{re.escape(pod)}\b",),) if pod else ()
    of_rank: Words = ((rf"\brank {rank}\b", mac), *of_pod)
    of_cable: Words = (
        (rf"{first}\.tb\d+--{other}\.tb|{other}\.tb\d+--{first}\.tb",),
        (first, other, r"\b(cable|link|port)\b"),
    )
    states: Mapping[Action, Words] = {
        Action.AHEAD: ((mac if fault.target is Target.MAC else "operator", r"\bclock\b"),),
        Action.BACK: ((mac if fault.target is Target.MAC else "operator", r"\bclock\b"),),
        Action.MOVE: ((mac, r"\baddress\b"),),
    }
    disks: Mapping[Target, Words] = {Target.MAC: ((mac, r"\bdisk\b"),)}
    parts: Mapping[Target, Words] = {
        **PROGRAMS,
        Target.MAC: ((mac,),),
        Target.CABLE: of_cable,
        Target.RANK: of_rank,
        Target.SUPERVISOR: of_rank,
        Target.KUBELET: ((mac, "kubelet"),),
        Target.AGENT: ((mac, r"\bagent\b"),),
    }
    full = disks.get(fault.target) if fault.action is Action.FILL else None
    return Culprit(str(fault), states.get(fault.action) or full or parts[fault.target])


@dataclass
class Names:
    """For one culprit: whether a user had something to look at, and after how many seconds each channel named it."""

    fault: str
    symptom: bool
    after: dict[str, float] = field(default_factory=dict)


def names(found: Sequence[Culprit], looks: Sequence[Look], noticed: bool) -> list[Names]:
    """``noticed``: whether a client noticed the fault."""
    symptom = noticed or any(not look.quiet for look in looks)
    return [
        Names(one.fault, symptom, {channel.value: at for channel in Channel if (at := one.first(looks, channel)) is not None})
        for one in found
    ]


def table(found: Iterable[Names]) -> str:
    """Fault kinds and channels: how often each named the culprit when a user had something to look at."""
    counts: dict[str, Counter[str]] = {}
    for one in found:
        count = counts.setdefault(one.fault, Counter())
        count.update(["hit", *(["symptom"] if one.symptom else []), *one.after])
    head = f"{'named':<26}{'hit':>6}{'seen':>6}" + "".join(f"{channel.value:>12}" for channel in Channel)
    rows = [
        f"{fault:<26}{count['hit']:>6}{count['symptom']:>6}" + "".join(f"{count[channel.value]:>12}" for channel in Channel)
        for fault, count in sorted(counts.items())
    ]
    return "\n".join([head, *rows])
