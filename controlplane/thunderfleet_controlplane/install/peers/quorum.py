"""The members of etcd, and the effects of removing one. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Member:
    """A member. ``name``: empty until it has started for the first time. ``learner``: it has no vote yet."""

    id: int
    name: str
    peer_urls: tuple[str, ...]
    learner: bool = False

    @property
    def hosts(self) -> tuple[str, ...]:
        """The addresses at which other members reach it."""
        return tuple(host for url in self.peer_urls if (host := urlsplit(url).hostname))

    def __str__(self) -> str:
        return f"{self.name or 'a member that has not started'} ({', '.join(self.hosts)})"


def parse(answer: Mapping[str, Any]) -> tuple[Member, ...]:
    """The members in an answer of etcd. Raises ValueError."""
    try:
        return tuple(
            Member(int(one["ID"]), str(one.get("name") or ""), tuple(one.get("peerURLs") or ()), bool(one.get("isLearner")))
            for one in answer["members"]
        )
    except (KeyError, TypeError, AttributeError):
        raise ValueError("etcd does not list its members") from None


def initial_cluster(members: Iterable[Member], own_name: str, own_url: str) -> str:
    """All members in the form of etcd's flag for its first start. The new member has no name in etcd yet."""
    others = [f"{one.name}={url}" for one in members if own_url not in one.peer_urls for url in one.peer_urls if one.name]
    return ",".join((*others, f"{own_name}={own_url}"))


def hosts_in(initial: str) -> tuple[str, ...]:
    """The addresses in a text of ``initial_cluster``."""
    return tuple(host for one in initial.split(",") if (host := urlsplit(one.partition("=")[2]).hostname))


def with_url(members: Iterable[Member], url: str) -> Member | None:
    """The member with this peer URL."""
    return next((one for one in members if url in one.peer_urls), None)


def voters(members: Iterable[Member], without: Member | None = None) -> int:
    """The number of voting members, not counting one of them."""
    return sum(not one.learner and one != without for one in members)


def why_not_without(members: Sequence[Member], leaving: Member, alive: Collection[int]) -> str:
    """Why ``leaving`` cannot be removed; empty if it can. ``alive``: the ids of the members that answer.

    More than half of the voting members must work, both before and after the removal.
    """
    if leaving.learner:
        return ""
    then = [one for one in members if one != leaving]
    return why_not_now(members, alive) or _too_few(then, alive, "would work then")


def why_not_now(members: Sequence[Member], alive: Collection[int]) -> str:
    """Why etcd cannot change anything now; empty if it can."""
    return _too_few(members, alive, "work now")


def _too_few(members: Sequence[Member], alive: Collection[int], work: str) -> str:
    voting = [one for one in members if not one.learner]
    working, needed = sum(one.id in alive for one in voting), len(voting) // 2 + 1
    if not voting or working >= needed:
        return ""
    down = ", ".join(str(one) for one in voting if one.id not in alive)
    return f"{working} of {len(voting)} control planes {work}, and {needed} are needed; not answering: {down}"
