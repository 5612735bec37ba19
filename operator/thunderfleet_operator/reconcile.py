"""Read, plan, act: one round for one ModelDeployment.

Reads the cache, asks the pure parts, writes the difference. Any round may be cut short or repeated: what it finds undone it
does, what it finds done it leaves alone.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from thunderfleet_crds.common import (
    ANNOTATION_HASH,
    API_VERSION,
    LABEL_EPOCH,
    LABEL_GROUP,
    MODELDEPLOYMENT_KIND,
)
from thunderfleet_crds.modeldeployment import ModelDeployment
from thunderfleet_crds.plan import Plan
from thunderfleet_crds.vocabulary import GroupPhase
from thunderfleet_lib.kube import ApiError, Json

from thunderfleet_operator.act import events
from thunderfleet_operator.act.drains import Drains
from thunderfleet_operator.act.executor import Actor
from thunderfleet_operator.act.group_client import Groups
from thunderfleet_operator.act.keys import KeyPair, group_keys
from thunderfleet_operator.act.mac_controller import Macs
from thunderfleet_operator.decide import manifests, port_aware_placement, status
from thunderfleet_operator.decide.lifecycle import Decision, Heard, Verdict, decide, may_roll, must_drain, ready
from thunderfleet_operator.decide.model import resolve
from thunderfleet_operator.decide.ports import PortSettings
from thunderfleet_operator.decide.status import Blocked, Outcome, Resolution
from thunderfleet_operator.metrics import Metrics
from thunderfleet_operator.observe import snapshot
from thunderfleet_operator.observe.fleet import Fleets
from thunderfleet_operator.observe.snapshot import GroupView, Parsed, PodView, RankPorts
from thunderfleet_operator.placement import Fleet, Placement, Unplaceable, better
from thunderfleet_operator.watch.cache import (
    CONFIGMAPS,
    DEPLOYMENTS,
    PODS,
    SECRETS,
    SERVICES,
    Cache,
)

log = logging.getLogger(__name__)

UNPLACED_SECONDS = 30.0
BLOCKED_SECONDS = 10.0
FIRST_ANSWER_SECONDS = 5.0
NAMES_TRIED = 8
BETTER_SECONDS = 30.0
"""How often at most it is asked whether a group that serves would be placed better today."""
PORT_TAKEN = ("PortInUse", "PortTaken", "AddressInUse")
"""Reasons of a runner whose lasting port something else holds."""


@dataclass(frozen=True, slots=True)
class Settings:
    pods: manifests.PodSettings
    ports: PortSettings


class Reconciler:
    """``master`` gives the operator's key; ``clock`` is UTC now."""

    def __init__(
        self,
        cache: Cache,
        parsed: Parsed,
        actor: Actor,
        groups: Groups,
        macs: Macs,
        metrics: Metrics,
        settings: Settings,
        master: Callable[[], bytes],
        clock: Callable[[], datetime],
    ) -> None:
        self._cache = cache
        self._actor = actor
        self._groups = groups
        self._macs = macs
        self._metrics = metrics
        self._settings = settings
        self._master = master
        self._clock = clock
        self._parsed = parsed
        self._fleets = Fleets()
        self._better: dict[tuple[str, int], tuple[object, datetime, str | None]] = {}
        self._secrets: set[str] = set()
        self._drains = Drains(groups, clock)
        self.unplaced: set[str] = set()
        """Deployments that wait for room: whatever ends or joins is news for them."""

    # --- a ModelDeployment -------------------------------------------------------------------------------------------

    async def deployment(self, key: str) -> float | None:
        """One round; seconds until the next although nothing may have changed."""
        item = self._cache[DEPLOYMENTS].items.get(key)
        if item is None or item["metadata"].get("deletionTimestamp"):
            # The garbage collector takes the children, by their owner references.
            self._groups.listen(key, {})
            self._drains.keep(key, frozenset())
            self.unplaced.discard(key)
            self._count_groups()
            return None
        md = self._parsed.get(ModelDeployment, item)
        if md is None:
            log.error("%s breaks the schema of this version; update the CRDs (helm upgrade)", key)
            return None
        views = snapshot.groups(self._cache, md)
        wanted = {index: view for index, view in views.items() if index < md.spec.replicas}
        self._listen(key, views)
        await self._groups.first_answers(key, FIRST_ANSWER_SECONDS)

        wanted_hash = snapshot.spec_hash(md.spec)
        nodes = snapshot.node_views(self._cache)
        used = snapshot.taken(self._cache)
        fleet = self._fleets.fleet(self._cache, self._parsed, used)
        resolution = resolve(fleet, snapshot.request(md.spec))
        heard = {i: self._groups.heard(key, i, view.epoch.number if view.epoch else 0) for i, view in views.items()}
        outcomes: list[Outcome] = []
        rechecks: list[float] = [await self._end_group(md, key, views[i], heard[i]) for i in views if i >= md.spec.replicas]
        stuck: set[int] = set()
        # Those that serve come last: whether one of them may be replaced depends on the others.
        for index, view in sorted(wanted.items(), key=lambda item: (ready(heard[item[0]]), item[0])):
            now, rolling = self._clock(), may_roll(wanted, heard, wanted_hash, stuck)
            decision = decide(
                *(view, heard[index], nodes, wanted_hash, md.spec.recovery, now),
                may_roll=index == rolling,
                draining_seconds=self._drains.seconds(key, view),
            )
            if decision.failure is not None:
                await self._macs.quarantine(decision.failure, f"{key}-{index}")
            outcome = Outcome(view, decision, heard[index], outdated=bool(view.epoch and view.epoch.spec_hash != wanted_hash))
            outcome = await self._carry_out(md, outcome, wanted_hash)
            outcomes.append(outcome)
            if outcome.unplaceable:
                stuck.add(index)
            if decision.recheck_seconds is not None:
                rechecks.append(decision.recheck_seconds)
            if outcome.unplaceable:
                rechecks.append(UNPLACED_SECONDS)
            if outcome.blocked:
                rechecks.append(BLOCKED_SECONDS)
        outcomes.sort(key=lambda outcome: outcome.view.index)
        await self._clean(md)
        await self._service(md)

        after = snapshot.groups(self._cache, md)
        self._listen(key, after)
        outcomes = [_with_view(outcome, after.get(outcome.view.index, outcome.view)) for outcome in outcomes]
        for position, entry in enumerate(outcomes):
            told, again = self._better_place(md, entry, fleet, used)
            outcomes[position] = replace(entry, better=told)
            if again is not None:
                rechecks.append(again)
        await self._status(md, outcomes, resolution, after)
        drains = [entry for entry in outcomes if entry.decision.verdict is Verdict.DRAIN and not entry.unplaceable]
        rechecks += self._drains.ask(key, [entry.view for entry in drains], notice=md.spec.replicas > 1)
        self._drains.keep(key, {entry.view.index for entry in drains} | {i for i in after if i >= md.spec.replicas})
        await self._macs.settle(node for view in (*views.values(), *after.values()) for node in view.nodes)
        if any(outcome.unplaceable or outcome.blocked for outcome in outcomes):
            self.unplaced.add(key)
        else:
            self.unplaced.discard(key)
        self._count_groups()
        if any(outcome.placed_now for outcome in outcomes):
            rechecks.append(2.0)
        return min(rechecks, default=None)

    def _keys(self, uid: str, index: int, epoch: int) -> KeyPair:
        return group_keys(self._master(), uid, index, epoch)

    def _listen(self, key: str, wanted: Mapping[int, GroupView]) -> None:
        plans: dict[int, tuple[Plan, KeyPair]] = {}
        for index, view in wanted.items():
            # One that is ending is listened to: it says when it has drained.
            if view.plan is not None and any(pod.rank == 0 for pod in view.pods):
                plans[index] = (view.plan, self._keys(view.plan.uid, index, view.plan.epoch))
        self._groups.listen(key, plans)

    async def _carry_out(self, md: ModelDeployment, outcome: Outcome, wanted_hash: str) -> Outcome:
        """Does what was decided for one group."""
        view = outcome.view
        if outcome.decision.verdict is Verdict.PLACE:
            return await self._place(md, outcome, wanted_hash)
        if outcome.decision.verdict is Verdict.DRAIN and outcome.outdated and outcome.decision.failure is None:
            # What serves is not given up for a spec that has no place.
            found = self._decide_place(md, view, outcome.decision)
            return _with_unplaceable(outcome, found) if isinstance(found, Unplaceable) else outcome
        if view.plan is not None and outcome.decision.verdict is Verdict.KEEP:
            blocked = await self._complete(md, view.plan, view)
            return _with_blocked(outcome, blocked)
        return outcome

    async def _place(self, md: ModelDeployment, outcome: Outcome, wanted_hash: str) -> Outcome:
        """A new epoch: a plan, the group's keys, and all its pods replaced together."""
        view = outcome.view
        found = self._decide_place(md, view, outcome.decision)
        if isinstance(found, Unplaceable):
            return _with_unplaceable(outcome, found)
        placement, ports = found
        try:
            made = await self._write_plan(md, view, placement, ports, wanted_hash)
        except ApiError as error:
            if error.status != 403:
                raise
            return _with_blocked(outcome, Blocked("Forbidden", str(error)))
        await self._end_pods(md, (*view.pods, *view.old_pods))
        log.info("%s: epoch %d on %s", made.group, made.epoch, ", ".join(placement.nodes))
        self._metrics.placements.labels(placement.transport.value).inc()
        blocked = await self._complete(md, made, None)
        return Outcome(view, outcome.decision, outcome.heard, placed_now=True, outdated=outcome.outdated, blocked=blocked)

    async def _write_plan(
        self, md: ModelDeployment, view: GroupView, placement: Placement, ports: Sequence[RankPorts], wanted_hash: str
    ) -> Plan:
        """The keys and the plan of the next epoch whose names are free."""
        epoch = view.last_epoch + 1
        while True:
            made = manifests.make_plan(md, view.index, epoch, placement, ports)
            try:
                await self._secret(md, made)
                await self._actor.apply(CONFIGMAPS, manifests.config_map(md, made, wanted_hash, placement.reason))
                return made
            except ApiError as error:
                # Of a deployment of that name that was deleted: the garbage collector has not come to it yet, and we cannot
                # see it, since the operator reads no Secrets.
                if error.status != 422 or "immutable" not in error.message or epoch > view.last_epoch + NAMES_TRIED:
                    raise
                epoch += 1

    def _decide_place(
        self, md: ModelDeployment, view: GroupView, decision: Decision
    ) -> tuple[Placement, Sequence[RankPorts]] | Unplaceable:
        """Where to, with ports. Macs to avoid are taken when no others will do."""
        everything = snapshot.taken(self._cache)
        used = snapshot.taken(self._cache, md.metadata.uid, view.index)
        whole = self._fleets.fleet(self._cache, self._parsed, everything)
        fleet = self._fleets.without(whole, self._cache, self._parsed, everything, used)
        current = tuple(rank.node for rank in view.plan.ranks) if view.plan else ()
        own = [pod for pod in snapshot.children(self._cache[PODS], md) if snapshot.pod_view(pod).name in _names(view)]
        kept = snapshot.kept_ports(view, own)
        failure = decision.failure
        if failure is not None and failure.reason in PORT_TAKEN and failure.node:
            # Something that is no pod holds a port of ours there.
            held = kept.pop(failure.node, None)
            if held is not None:
                used = snapshot.with_ports(used, failure.node, held.all)
        return port_aware_placement.choose(
            fleet, md, used, self._settings.ports, current=current, avoid=decision.avoid, kept=kept
        )

    def _better_place(
        self, md: ModelDeployment, outcome: Outcome, fleet: Fleet, used: snapshot.Taken
    ) -> tuple[str | None, float | None]:
        """Whether a group that stays where it is would go elsewhere today. Told, never done: moving costs its users more. And
        the seconds until it is to be asked again, when the fleet has changed since it was asked last.
        """
        view, key = outcome.view, (f"{md.metadata.namespace}/{md.metadata.name}", outcome.view.index)
        if view.plan is None or outcome.decision.verdict is not Verdict.KEEP or not ready(outcome.heard):
            self._better.pop(key, None)
            return None, None
        now, known = self._clock(), self._better.get(key)
        seen = (fleet, view.plan.epoch)
        if known is not None:
            left = BETTER_SECONDS - (now - known[1]).total_seconds()
            if known[0] == seen or left > 0:
                return known[2], None if known[0] == seen else left
        less = snapshot.taken(self._cache, md.metadata.uid, view.index)
        own = self._fleets.without(fleet, self._cache, self._parsed, used, less)
        running = status.transport(view.plan)
        told = better(own, snapshot.request(md.spec, tuple(rank.node for rank in view.plan.ranks)), running)
        self._better[key] = (seen, now, told)
        return told, None

    async def _secret(self, md: ModelDeployment, made: Plan) -> None:
        """Once a run of the operator: the bytes are derived, so applying them again changes nothing."""
        name = f"{made.namespace}/{manifests.group_name(made.deployment, made.index, made.epoch)}/{made.uid}"
        if name not in self._secrets:
            pair = self._keys(made.uid, made.index, made.epoch)
            await self._actor.apply(SECRETS, manifests.secret(md, made, pair.certificate, pair.key))
            self._secrets.add(name)

    async def _complete(self, md: ModelDeployment, made: Plan, view: GroupView | None) -> Blocked | None:
        """Makes the pods that a placement lacks, and ends those of placements before it."""
        await self._end_pods(md, view.old_pods if view else ())
        missing = [entry for entry in made.ranks if f"{made.namespace}/{entry.pod}" not in self._cache[PODS].items]
        if missing:
            # Before the pods: whatever measures on these Macs stops first.
            await self._macs.settle(entry.node for entry in made.ranks)
        try:
            await self._secret(md, made)
            for entry in missing:
                await self._actor.apply(PODS, manifests.pod(md, made, entry.rank, self._settings.pods))
        except ApiError as error:
            if error.status not in (403, 422):
                raise
            if "violates PodSecurity" in error.message:
                advice = f"kubectl label namespace {made.namespace} pod-security.kubernetes.io/enforce=privileged --overwrite"
                return Blocked("PodSecurityForbidden", f"namespace {made.namespace} refuses the runner pods; run: {advice}")
            return Blocked("PodRefused", f"the API server refuses the runner pods: {error.message}")
        return None

    async def _end_pods(self, md: ModelDeployment, pods: Iterable[PodView]) -> None:
        for pod in pods:
            if not pod.terminating:
                await self._actor.delete(PODS, md.metadata.namespace, pod.name, pod.uid)

    async def _end_group(self, md: ModelDeployment, key: str, view: GroupView, heard: Heard) -> float:
        """A group that is not wanted any more drains, and then its pods end. Seconds until the next look."""
        if must_drain(view, heard, self._drains.seconds(key, view)):
            await self._end_pods(md, view.old_pods)
            return min([1.0, *self._drains.ask(key, [view], notice=True)])
        await self._end_pods(md, (*view.pods, *view.old_pods))
        return UNPLACED_SECONDS

    async def _clean(self, md: ModelDeployment) -> None:
        """Plans and keys of the past go when no pod of theirs is left."""
        left = {
            (pod["metadata"]["labels"].get(LABEL_GROUP), pod["metadata"]["labels"].get(LABEL_EPOCH))
            for pod in snapshot.children(self._cache[PODS], md)
        }
        for index, view in snapshot.groups(self._cache, md).items():
            past = view.past if index < md.spec.replicas else (*view.past, *([view.epoch] if view.epoch else []))
            for epoch in past:
                if (str(index), str(epoch.number)) not in left:
                    await self._actor.delete(SECRETS, md.metadata.namespace, epoch.config_map)
                    await self._actor.delete(CONFIGMAPS, md.metadata.namespace, epoch.config_map)

    async def _service(self, md: ModelDeployment) -> None:
        manifest = manifests.service(md)
        known = self._cache[SERVICES].items.get(f"{md.metadata.namespace}/{md.metadata.name}")
        if snapshot.loopback(self._cache):
            return
        wanted = manifest["metadata"]["annotations"][ANNOTATION_HASH]
        if known is None or (known["metadata"].get("annotations") or {}).get(ANNOTATION_HASH) != wanted:
            await self._actor.apply(SERVICES, manifest)

    async def _status(
        self, md: ModelDeployment, outcomes: Sequence[Outcome], resolution: Resolution, views: Mapping[int, GroupView]
    ) -> None:
        """Writes the status if it is another, and tells what changed."""
        ending = [
            pod
            for index, view in views.items()
            for pod in ((*view.old_pods, *view.pods) if index >= md.spec.replicas else view.old_pods)
            if pod.terminating
        ]
        made = status.build(md, outcomes, resolution, ending, self._clock())
        if made == md.status:
            return
        meta = {"name": md.metadata.name, "namespace": md.metadata.namespace}
        body: Json = {"apiVersion": API_VERSION, "kind": MODELDEPLOYMENT_KIND, "metadata": meta, "status": made.dump()}
        try:
            await self._actor.apply_status(DEPLOYMENTS, body)
        except ApiError as error:
            if error.status == 404:
                return
            raise
        for occurrence in events.occurrences(md.status, made):
            await self._actor.tell(md, occurrence)

    def _count_groups(self) -> None:
        counts = dict.fromkeys((stage.value for stage in GroupPhase), 0)
        for md in snapshot.deployments(self._cache, self._parsed):
            for group in md.status.groups:
                counts[group.state.value] += 1
        for stage, count in counts.items():
            self._metrics.groups.labels(stage).set(count)


def _names(view: GroupView) -> set[str]:
    return {pod.name for pod in (*view.pods, *view.old_pods)}


def _with_view(outcome: Outcome, view: GroupView) -> Outcome:
    heard = outcome.heard
    if outcome.placed_now:
        heard = type(heard)()
    return replace(outcome, view=view, heard=heard)


def _with_blocked(outcome: Outcome, blocked: Blocked | None) -> Outcome:
    return replace(outcome, placed_now=False, unplaceable=None, blocked=blocked)


def _with_unplaceable(outcome: Outcome, unplaceable: Unplaceable) -> Outcome:
    return replace(outcome, placed_now=False, unplaceable=unplaceable, blocked=None)
