"""Conversations from a seed, and groups that answer them in simulated time: what a policy of balancing is worth. Pure.

A conversation begins with one of a few system prompts, some of which are more frequent than others. After each answer its user
thinks, and sends everything so far and a new message. A group reads prompts one after the other, without the tokens that it has
cached, and generates for all its requests at once.
"""

import heapq
import random
import statistics
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from thunderfleet_router.decide import balance, prefixes

BYTES_PER_TOKEN = 4
PREFILL_TOKENS_PER_SECOND = 1200.0
STEP_SECONDS = 0.03
SLOTS = 4
CACHED_TOKENS = 65536
SYSTEM_PROMPTS = 12
SYSTEM_BYTES = (2_000, 24_000)
MESSAGE_BYTES = (200, 4_000)
ANSWER_TOKENS = (30, 200)
TURNS = (1, 8)
THINK_SECONDS = 8.0


@dataclass(eq=False, slots=True)
class Turn:
    """A request of a conversation."""

    conversation: "Conversation"
    number: int
    at: float
    prompt: bytes
    chain: prefixes.Chain
    answer_tokens: int


@dataclass(eq=False, slots=True)
class Conversation:
    """A conversation that has not ended. ``text`` is everything so far."""

    rng: random.Random
    text: bytes
    turns: int

    def next(self, number: int, at: float) -> Turn:
        self.text += _words(self.rng, MESSAGE_BYTES)
        return Turn(self, number, at, self.text, prefixes.chain(self.text), self.rng.randint(*ANSWER_TOKENS))


def _words(rng: random.Random, length: tuple[int, int]) -> bytes:
    return rng.randbytes(rng.randint(*length))


def first_turns(seed: int, count: int, per_second: float) -> list[Turn]:
    """The first requests of ``count`` conversations."""
    rng = random.Random(seed)
    systems = [_words(rng, SYSTEM_BYTES) for _ in range(SYSTEM_PROMPTS)]
    weights = [1 / (rank + 1) for rank in range(SYSTEM_PROMPTS)]
    at, found = 0.0, []
    for number in range(count):
        at += rng.expovariate(per_second)
        own = random.Random(f"{seed} {number}")
        conversation = Conversation(own, rng.choices(systems, weights)[0], own.randint(*TURNS))
        found.append(conversation.next(0, at))
    return found


@dataclass(eq=False, slots=True)
class Group:
    """A simulated group."""

    name: str
    cached_tokens: int = CACHED_TOKENS
    running: int = 0
    waiting: deque[Turn] = field(default_factory=deque)
    reads_until: float = 0.0
    blocks: OrderedDict[bytes, None] = field(default_factory=OrderedDict)

    @property
    def in_flight(self) -> int:
        return self.running + len(self.waiting)

    def cached_bytes(self, chain: prefixes.Chain) -> int:
        """What is really cached."""
        known = 0
        for block in chain:
            if block not in self.blocks:
                break
            known += 1
        return known * prefixes.BLOCK_BYTES

    def remember(self, chain: prefixes.Chain) -> None:
        for block in reversed(chain):
            self.blocks[block] = None
            self.blocks.move_to_end(block)
        while len(self.blocks) * prefixes.BLOCK_BYTES > self.cached_tokens * BYTES_PER_TOKEN:
            self.blocks.popitem(last=False)

    def read_seconds(self, turn: Turn) -> float:
        return (len(turn.prompt) - self.cached_bytes(turn.chain)) / BYTES_PER_TOKEN / PREFILL_TOKENS_PER_SECOND


Policy = Callable[[Sequence[Group], Turn, float], Group]


def round_robin() -> Policy:
    """One group after the other."""
    count = 0

    def choose(groups: Sequence[Group], turn: Turn, now: float) -> Group:
        nonlocal count
        count += 1
        return groups[count % len(groups)]

    return choose


def least_loaded() -> Policy:
    """The group with the fewest requests."""
    return lambda groups, turn, now: min(groups, key=lambda group: group.in_flight)


def oracle() -> Policy:
    """Has exact data of each cache and of when each group can read: the group with the earliest first token."""

    def first_token(group: Group, turn: Turn, now: float) -> float:
        reading = sum(group.read_seconds(waiting) for waiting in group.waiting)
        queued = len(group.waiting) + max(0, group.running + 1 - SLOTS)
        behind = queued * statistics.mean(ANSWER_TOKENS) * STEP_SECONDS / SLOTS
        return max(group.reads_until - now, 0.0) + reading + behind + group.read_seconds(turn)

    return lambda groups, turn, now: min(groups, key=lambda group: first_token(group, turn, now))


def ours() -> Policy:
    """The router's."""
    remembered: dict[str, prefixes.Remembered] = {}
    used: dict[str, int] = {}
    count = 0

    def choose(groups: Sequence[Group], turn: Turn, now: float) -> Group:
        nonlocal count
        count += 1
        candidates = [
            balance.Candidate(
                group.name,
                group.in_flight,
                remembered.setdefault(group.name, prefixes.Remembered(CACHED_TOKENS)).matching(turn.chain),
                used.get(group.name, 0),
            )
            for group in groups
        ]
        chosen = balance.choose(candidates)
        assert chosen is not None
        used[chosen.name] = count
        remembered[chosen.name].add(turn.chain)
        return next(group for group in groups if group.name == chosen.name)

    return choose


def longest_prefix() -> Policy:
    """As the vLLM production stack's prefix-aware router: the longest match, whatever the load; nothing is ever forgotten."""
    seen: dict[str, set[bytes]] = {}
    rng = random.Random(1)

    def choose(groups: Sequence[Group], turn: Turn, now: float) -> Group:
        lengths = {group: sum(block in seen.setdefault(group.name, set()) for block in turn.chain) for group in groups}
        chosen = rng.choice([group for group in groups if lengths[group] == max(lengths.values())])
        seen[chosen.name].update(turn.chain)
        return chosen

    return choose


def cache_aware() -> Policy:
    """As sglang-router's cache_aware with its defaults: a long enough match, unless loads differ by more than 64 and 1.5 times.

    Without a match, the group with the fewest requests.
    """
    seen: dict[str, set[bytes]] = {}

    def choose(groups: Sequence[Group], turn: Turn, now: float) -> Group:
        loads = [group.in_flight for group in groups]
        chosen = min(groups, key=lambda group: group.in_flight)
        if not (max(loads) - min(loads) > 64 and max(loads) > 1.5 * min(loads)):
            matches = {group: sum(block in seen.setdefault(group.name, set()) for block in turn.chain) for group in groups}
            best = max(groups, key=lambda group: matches[group])
            if turn.chain and matches[best] / len(turn.chain) > 0.3:
                chosen = best
        seen.setdefault(chosen.name, set()).update(turn.chain)
        return chosen

    return choose


POLICIES: dict[str, Callable[[], Policy]] = {
    "ours": ours, "round robin": round_robin, "least loaded": least_loaded, "oracle": oracle,
    "longest prefix": longest_prefix, "cache aware": cache_aware,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    """What a policy achieves: tokens taken from caches, and the mean time to the first token."""

    cached_tokens: float
    prompt_tokens: float
    first_token: float


def limit(groups: int, seed: int, conversations: int) -> float:
    """The part of the prompts that could come from caches at most: all requests to one group whose cache forgets nothing."""
    found = simulate(lambda fleet, turn, now: fleet[0], groups, seed, conversations, cached_tokens=1 << 40)
    return found.cached_tokens / found.prompt_tokens


def simulate(policy: Policy, groups: int, seed: int, conversations: int = 300, *, cached_tokens: int = CACHED_TOKENS) -> Result:
    """All turns of the conversations."""
    fleet = [Group(f"group-{number}", cached_tokens) for number in range(groups)]
    events: list[tuple[float, int, str, object]] = []
    order = 0

    def push(at: float, kind: str, what: object) -> None:
        nonlocal order
        order += 1
        heapq.heappush(events, (at, order, kind, what))

    for turn in first_turns(seed, conversations, per_second=0.14 * groups):
        push(turn.at, "ask", turn)
    firsts: list[float] = []
    cached = prompts = 0

    def start(group: Group, turn: Turn, now: float) -> None:
        nonlocal cached, prompts
        group.running += 1
        known = group.cached_bytes(turn.chain)
        cached += known
        prompts += len(turn.prompt)
        group.reads_until = max(group.reads_until, now) + group.read_seconds(turn)
        group.remember(turn.chain)
        firsts.append(group.reads_until - turn.at)
        push(group.reads_until + turn.answer_tokens * STEP_SECONDS, "end", (group, turn))

    while events:
        now, _, kind, what = heapq.heappop(events)
        if kind == "ask":
            assert isinstance(what, Turn)
            group = policy(fleet, what, now)
            if group.running < SLOTS:
                start(group, what, now)
            else:
                group.waiting.append(what)
            continue
        assert isinstance(what, tuple)
        group, turn = what
        group.running -= 1
        if group.waiting:
            start(group, group.waiting.popleft(), now)
        conversation = turn.conversation
        if turn.number + 1 < conversation.turns:
            conversation.text += conversation.rng.randbytes(turn.answer_tokens * BYTES_PER_TOKEN)
            later = now + conversation.rng.expovariate(1 / THINK_SECONDS)
            push(later, "ask", conversation.next(turn.number + 1, later))
    return Result(cached / BYTES_PER_TOKEN, prompts / BYTES_PER_TOKEN, statistics.mean(firsts))
