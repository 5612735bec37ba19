"""The running account of one round: each group that is placed adds to the memory and ports that are in use."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.kinds.modeldeployment import AvoidedLink

from thunderfleet_operator.decide.group.avoided import without
from thunderfleet_operator.observe.fleet.builder import occupied
from thunderfleet_operator.observe.fleet.usage import Taken, Usage
from thunderfleet_operator.observe.objects.metadata import GroupKey
from thunderfleet_operator.placement import Fleet

RESERVED = ""
"""UID of plans whose memory and ports are reserved."""


@dataclass(frozen=True, slots=True)
class Account:
    """``taken``: the sums of ``usage``. ``fleet``: the fleet after these have been subtracted."""

    fleet: Fleet
    usage: Usage
    taken: Taken

    def without(self, group: GroupKey) -> tuple[Fleet, Taken]:
        """Returns the fleet and the sums as if this group used nothing."""
        account = self._with(self.usage.without(group))
        return account.fleet, account.taken

    def placed(self, group: GroupKey, plan: Plan) -> "Account":
        """Returns the account after a group has been placed."""
        return self._with(self.usage.placed(group, plan))

    def reserving(self, plans: Iterable[Plan]) -> "Account":
        """Returns the account in which the memory and ports of these plans are reserved too, even if their pods have ended."""
        usage = self.usage
        for number, plan in enumerate(plans):
            # A separate key, so that no pod counts as one of these ranks: when a pod ends, its memory stays reserved.
            usage = usage.placed((RESERVED, number), plan.model_copy(update={"uid": RESERVED}))
        return self._with(usage)

    def _with(self, usage: Usage) -> "Account":
        if usage is self.usage:
            return self
        taken = usage.taken_after(self.usage, self.taken)
        return Account(occupied(self.fleet, self.taken, taken), usage, taken)

    def avoiding(self, links: Collection[AvoidedLink], now: datetime) -> "Account":
        """Returns the account in which these cables get no new placements."""
        return replace(self, fleet=without(self.fleet, links, now)) if links else self

    def quarantined(self, node: str, reason: str) -> "Account":
        """Returns the account in which one Mac gets no new placements."""
        mac = self.fleet.macs.get(node)
        if mac is None:
            return self
        return replace(self, fleet=self.fleet.changed([replace(mac, quarantine=reason)]))
