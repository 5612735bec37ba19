"""How much each caller uses of a shared resource. Pure."""

from collections import Counter
from enum import StrEnum


class Scope(StrEnum):
    """Whose limit is reached."""

    ALL = "all"
    CALLER = "caller"
    STRANGERS = "strangers"
    """The limit of all callers without a key together. Each address has the share of a key, but one caller may have many
    addresses."""


class Full(Exception):
    """A limit is reached; ``held`` is what its scope holds."""

    def __init__(self, scope: Scope, held: int) -> None:
        super().__init__(f"{scope}: {held}")
        self.scope = scope
        self.held = held


class Shares:
    """Amounts by caller: ``total`` in all, at most ``each`` of one caller, and ``strangers`` of those without a key."""

    def __init__(self, total: int, each: int | None = None, strangers: int | None = None) -> None:
        self._total = total
        self._each = total if each is None else each
        self._strangers = total if strangers is None else strangers
        self._held: Counter[str] = Counter()
        self._all = 0
        self._of_strangers = 0

    @property
    def held(self) -> int:
        """What all callers hold."""
        return self._all

    def check(self, caller: str, amount: int, *, known: bool = True) -> None:
        """Raises Full if the caller cannot take so much more. ``known``: whether it has a key."""
        if self._all + amount > self._total:
            raise Full(Scope.ALL, self._all)
        if self._held[caller] + amount > self._each:
            raise Full(Scope.CALLER, self._held[caller])
        if not known and self._of_strangers + amount > self._strangers:
            raise Full(Scope.STRANGERS, self._of_strangers)

    def take(self, caller: str, amount: int, *, known: bool = True) -> None:
        """Adds to what the caller holds. Raises Full."""
        self.check(caller, amount, known=known)
        self._add(caller, amount, known)

    def give_back(self, caller: str, amount: int, *, known: bool = True) -> None:
        """The opposite of ``take``."""
        self._add(caller, -amount, known)

    def _add(self, caller: str, amount: int, known: bool) -> None:
        self._all += amount
        self._of_strangers += 0 if known else amount
        self._held[caller] += amount
        if self._held[caller] <= 0:
            del self._held[caller]
