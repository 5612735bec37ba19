"""One round for one ModelDeployment: all groups are decided at once, from one Observed to one Decision.

The memory, ports and queue pairs of a placed group are not available to the groups after it; ``Account`` keeps the sums.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from thunderfleet_crds.exchange.plan import Plan, group_name
from thunderfleet_crds.kinds.modeldeployment import AvoidedLink, Failure, LostPlace, ModelDeployment, ModelDeploymentStatus
from thunderfleet_crds.names import ANNOTATION_HASH, MAX_RANKS
from thunderfleet_crds.vocabulary import Transport
from thunderfleet_lib.timestamps import age_seconds

from thunderfleet_operator.decide import manifests
from thunderfleet_operator.decide.group.avoided import avoided, counted, seconds_left, without
from thunderfleet_operator.decide.group.cables import unknown_rdma
from thunderfleet_operator.decide.group.lifecycle import NextStep, Step, must_drain, next_step, ready
from thunderfleet_operator.decide.group.rollout import next_to_roll
from thunderfleet_operator.decide.mac_usage import quarantine_for
from thunderfleet_operator.decide.manifests import Manifest, PodSettings, transport
from thunderfleet_operator.decide.placing import port_aware_placement
from thunderfleet_operator.decide.placing.account import Account
from thunderfleet_operator.decide.placing.failback import Failback, failback, lost_after, lost_place
from thunderfleet_operator.decide.placing.model import Resolution, resolve
from thunderfleet_operator.decide.placing.ports import PortSettings
from thunderfleet_operator.decide.placing.request import request, spec_hash
from thunderfleet_operator.decide.routing import endpoints
from thunderfleet_operator.decide.routing.endpoints import RouterSettings
from thunderfleet_operator.decide.scaling.autoscaling import Scaling, scale, staying
from thunderfleet_operator.decide.scaling.turns import yielding
from thunderfleet_operator.decide.status import deployment as status
from thunderfleet_operator.decide.status.outcome import Blocked, Outcome
from thunderfleet_operator.decide.status.speed import predicted_speed
from thunderfleet_operator.decide.weights.deployment import needed, resolution, shown, waiting_message, waits
from thunderfleet_operator.decide.weights.manifests import NO_HUB, HubSettings
from thunderfleet_operator.observe.fleet.builder import occupied
from thunderfleet_operator.observe.load import Candidate
from thunderfleet_operator.observe.objects.metadata import GroupKey
from thunderfleet_operator.observe.objects.plans import Epoch, GroupView, Report
from thunderfleet_operator.observe.objects.pods import Pod
from thunderfleet_operator.observe.observed import Observed
from thunderfleet_operator.placement import (
    Answers,
    Fleet,
    Placement,
    Question,
    Speed,
    Unplaceable,
    WhatIsBetter,
    WherePlaced,
)
from thunderfleet_operator.placement import plan as plan_at_once

UNPLACED_SECONDS = 30.0
"""A group without a placement is retried after this many seconds even if nothing has changed."""
BLOCKED_SECONDS = 10.0
PLACED_SECONDS = 2.0
ENDING_SECONDS = 1.0
EPOCHS_TRIED = 64
"""Number of epochs that are tried, to find one whose names are free."""
ADVICE_SECONDS = 30.0
"""Minimum interval between two questions to the planner about a better placement for a group that serves."""
SETTLE_SECONDS = 15.0
"""How long a first placement over TCP waits for the agents to report whether a cable of its Macs carries RDMA. Without this
wait, a group that is applied seconds after the installation would stay on TCP."""
TURN_STEPS = 3000
"""Step limit of a search for a placement after other ModelDeployments have made room. The steps take milliseconds."""
LOST_ADVICE_SECONDS = 3.0
"""The same as ``ADVICE_SECONDS``, for a group that has lost its placement."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings from the command line."""

    pods: PodSettings
    ports: PortSettings
    routers: RouterSettings | None = None
    """None without routers."""
    hub: HubSettings = NO_HUB


@dataclass(frozen=True, slots=True)
class NewPlacement:
    """A placement to write: the plan, and the annotations of its ConfigMap."""

    plan: Plan
    spec_hash: str
    reason: str


@dataclass(frozen=True, slots=True)
class GroupDecision:
    """The decision about one group."""

    view: GroupView
    report: Report
    next: NextStep
    outdated: bool = False
    placement: NewPlacement | None = None
    unplaceable: Unplaceable | None = None
    delete: tuple[Pod, ...] = ()
    create: tuple[int, ...] = ()
    """Ranks without a pod."""
    drain: bool = False
    better: str | None = None
    waits: str | None = None
    """What a group that lost its placement waits for before it goes back."""
    planning: bool = False
    """Whether the planner is still looking for a place. ``unplaceable`` is then its last answer."""
    unknown: str | None = None
    """The cable whose first report the placement waits for. ``planning`` then."""
    avoided: tuple[AvoidedLink, ...] = ()
    """Cables that corrupted data of the group."""
    lost: LostPlace | None = None
    """The placement that the group has lost, once ``placement`` replaces it."""
    fetching: tuple[str, ...] = ()
    """Macs of its placement that still fetch the model. It has no pods until then."""

    @property
    def settled(self) -> bool:
        """Whether the group serves, stays where it is, and waits for nothing."""
        open_ends = (
            *(self.outdated, self.placement, self.unplaceable, self.planning, self.unknown, self.drain, self.waits),
            *(self.delete, self.create, self.fetching, self.avoided, self.lost, self.next.failure, self.next.returns),
        )
        return self.next.step is Step.KEEP and ready(self.report) and lost_place(self.view) is None and not any(open_ends)

    @property
    def plan(self) -> Plan | None:
        """The plan whose pods should exist; None if no pods should be created."""
        if self.placement is not None:
            return self.placement.plan
        return self.view.plan if self.next.step is Step.KEEP and self.view.proven else None


@dataclass(frozen=True, slots=True)
class Decision:
    """Everything that one round does, for the executor."""

    observed: Observed
    quarantines: tuple[tuple[Failure, str], ...]
    """Failures that take a Mac out of placement, each with the name of its group."""
    groups: tuple[GroupDecision, ...]
    """The groups of the spec, in the order in which they were decided."""
    ending: tuple[GroupDecision, ...]
    """Groups that the spec no longer requires."""
    collect: tuple[Epoch, ...]
    """Old placements without pods: their ConfigMaps and Secrets are deleted."""
    service: Manifest | None
    """The Service to create, or, with its UID, to update; None if it is up to date, or if the operator did not create it."""
    endpoint_slice: Manifest | None
    """The EndpointSlice of the Service; None if it is up to date, if the Service selects the pods itself, or if it is not the
    operator's."""
    service_taken: bool
    """Whether another object has the Service's name."""
    resolution: Resolution
    cache: Manifest | None
    """The ModelCache to create, or to change."""
    avoids: frozenset[str]
    """Cables that the answers to ``questions`` leave out because they corrupted data."""
    questions: Mapping[int, Question]
    """Questions to the planner, by group. At most one requests a placement, because the next one depends on its answer."""
    routers: RouterSettings | None
    scaling: Scaling | None
    """What autoscaling does; None without it."""
    recheck_seconds: float | None

    @property
    def deployment(self) -> ModelDeployment:
        """The ModelDeployment."""
        return self.observed.deployment

    @property
    def exclusive(self) -> bool:
        """Whether it takes what others may need too: room on Macs, a turn, or the ModelCache of a model.

        It must have been decided after everything that others have taken, and be written before they decide.
        """
        yields = self.scaling is not None and self.scaling.yields
        placed = any(group.placement is not None for group in self.groups)
        return bool(self.quarantines or placed or yields or self.cache is not None)

    @property
    def settled(self) -> bool:
        """Whether all groups serve and nothing is due: changes of Macs and cables of others allow better places only."""
        return not self.ending and not self.quarantines and all(group.settled for group in self.groups)

    @property
    def nodes(self) -> frozenset[str]:
        """All Macs that a group has or is about to get."""
        placed = {rank.node for group in self.groups if group.placement for rank in group.placement.plan.ranks}
        return frozenset(placed).union(*(view.nodes for view in self.observed.groups.values()))


@dataclass(frozen=True, slots=True)
class Result:
    """The result of the writes for one group."""

    epoch: Epoch | None = None
    """The plan that was written."""
    created: tuple[Pod, ...] = ()
    deleted: Mapping[str, Pod | None] = field(default_factory=dict)
    """Each deleted pod as the API server returned it, by name; None if it no longer existed."""
    blocked: Blocked | None = None


# --- the decision ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Asked:
    """Placeholder while the planner has not answered. It has the last answer to the same request on an earlier fleet."""

    question: WherePlaced
    before: Unplaceable | None


def decide(observed: Observed, settings: Settings, answers: Answers) -> Decision:
    """Decides everything that one round does, from the planner's answers that have arrived."""
    deployment = observed.deployment
    name = f"{deployment.metadata.namespace}/{deployment.metadata.name}"
    wanted_hash = spec_hash(deployment.spec)
    wanted = {index: view for index, view in observed.groups.items() if index < deployment.wanted_groups}
    links = {index: _avoided(observed, view) for index, view in observed.groups.items()}
    avoids = counted((link for known in links.values() for link in known), observed.fleet, observed.now)
    fleet = without(observed.fleet, avoids, observed.now)
    names = frozenset(link.name for link in avoids)
    account = Account(fleet, observed.usage, observed.taken).reserving(observed.signals.reserved)
    quarantines: list[tuple[Failure, str]] = []
    groups: list[GroupDecision] = []
    questions: dict[int, Question] = {}
    waiting = False
    rechecks: list[float | None] = [observed.steady_seconds, seconds_left(avoids, observed.now)]
    stuck: set[int] = set()
    # Groups that serve come last: whether one of them may be replaced depends on the others.
    for index, view in sorted(wanted.items(), key=lambda item: (ready(observed.reports[item[0]]), item[0])):
        back = _failback(observed, view, wanted, fleet, names, moving=any(group.next.returns for group in groups))
        step = next_step(
            view,
            observed.reports[index],
            observed.nodes,
            observed.fleet,
            wanted_hash,
            deployment.spec.recovery,
            observed.now,
            may_roll=index == next_to_roll(wanted, observed.reports, wanted_hash, stuck),
            returns=back.due,
            draining_seconds=observed.draining_seconds[index],
        )
        held = quarantine_for(observed.profiles, observed.nodes, step.failure, f"{name}-{index}", observed.now)
        if step.failure is not None and held is not None:
            quarantines.append((step.failure, f"{name}-{index}"))
            account = account.quarantined(step.failure.node or "", held.reason)
        links[index] = _avoided(observed, view, step.failure)
        account = account.avoiding(links[index], observed.now)
        group, place = _group(observed, settings, account, view, step, wanted_hash, answers, waiting=waiting)
        if group.placement is not None:
            group = replace(group, lost=lost_after(view, step, group.placement.plan, fleet, outdated=group.outdated))
        group = replace(group, waits=back.waits, avoided=links[index])
        group, advice, again = _with_advice(observed, group, fleet, names)
        waiting = waiting or group.planning
        question = place or advice
        if question is not None:
            questions[index] = question
        if group.placement is not None:
            account = account.placed(_key(deployment, index), group.placement.plan)
        if group.unplaceable is not None:
            stuck.add(index)
        rechecks += [step.recheck_seconds, again, back.recheck_seconds]
        if group.unknown is not None:
            rechecks.append(SETTLE_SECONDS - observed.settling_seconds.get(index, 0.0))
        unplaced = group.unplaceable or group.planning
        rechecks.append(UNPLACED_SECONDS if unplaced else PLACED_SECONDS if group.placement else None)
        groups.append(group)
    scaling = scale(deployment, {index: observed.reports[index] for index in wanted}, wanted, observed.signals, observed.now)
    if scaling is not None:
        scaling = replace(scaling, yields=_turns(observed, deployment, groups, account))
        rechecks.append(scaling.recheck_seconds)
    ending = tuple(_ending(observed, view) for index, view in observed.groups.items() if index not in wanted)
    rechecks += [ENDING_SECONDS if group.drain else UNPLACED_SECONDS for group in ending]
    found = resolve(observed.base, request(deployment.spec))
    cache = needed(
        deployment,
        observed.base,
        observed.weights,
        settings.hub,
        found=found.found,
        unplaced=bool(stuck),
        taken=observed.cache_name_taken,
    )
    return Decision(
        observed=observed,
        quarantines=tuple(quarantines),
        groups=tuple(groups),
        ending=ending,
        collect=_collect(observed),
        service=_service(observed, settings.routers),
        endpoint_slice=_endpoint_slice(observed, settings.routers),
        routers=settings.routers,
        service_taken=observed.service is not None and not observed.service.orphan and not _own_service(observed),
        resolution=resolution(observed.weights, found, deployment.spec.model.copies, cache.coming),
        cache=cache.apply,
        avoids=names,
        questions=questions,
        scaling=scaling,
        recheck_seconds=min((seconds for seconds in rechecks if seconds is not None), default=None),
    )


def _turns(
    observed: Observed, deployment: ModelDeployment, groups: Sequence[GroupDecision], account: Account
) -> tuple[str, ...]:
    """Returns the ModelDeployments to stop so that this one, which a request waits for, has room."""
    stuck = next((group for group in groups if group.unplaceable is not None and not group.planning), None)
    if stuck is None or not deployment.wakes or observed.signals.asked.wake_seconds is None:
        return ()
    asked = request(deployment.spec, corrections=observed.corrections)
    base, taken = account.without(_key(deployment, stuck.view.index))

    def fits(gone: Sequence[Candidate]) -> bool:
        usage = account.usage.without(_key(deployment, stuck.view.index))
        for one in gone:
            for index in one.groups:
                usage = usage.without((one.uid, index))
        fleet = occupied(base, taken, usage.taken_after(account.usage, account.taken))
        return isinstance(plan_at_once(fleet, asked, max_steps=TURN_STEPS, explained=False), Placement)

    return yielding(observed.candidates, fits)


def _key(deployment: ModelDeployment, index: int) -> GroupKey:
    return deployment.metadata.uid, index


def _group(
    observed: Observed,
    settings: Settings,
    account: Account,
    view: GroupView,
    step: NextStep,
    wanted_hash: str,
    answers: Answers,
    *,
    waiting: bool,
) -> tuple[GroupDecision, WherePlaced | None]:
    """Decides about one group of the spec. Returns the decision and the questions to the planner.

    ``waiting``: an earlier group waits for an answer. Only then is it known what is left for this one.
    """
    outdated = bool(view.epoch and view.epoch.spec_hash != wanted_hash)
    group = GroupDecision(view, observed.reports[view.index], step, outdated)
    if step.step is Step.KEEP and view.plan is not None:
        there = {pod.rank for pod in view.pods}
        missing = tuple(rank.rank for rank in view.plan.ranks if rank.rank not in there) if view.proven else ()
        fetching = waits(observed.weights, view.plan) if missing else ()
        create = () if fetching else missing
        return replace(group, delete=_alive(view.old_pods), create=create, fetching=fetching), None
    # A serving group keeps serving if the changed spec cannot be placed.
    if step.step is not Step.PLACE and (step.step is not Step.DRAIN or step.failure is not None):
        return replace(group, drain=step.step is Step.DRAIN), None
    found = _placement(observed, settings, account, view, step, wanted_hash, answers)
    if step.ends and not isinstance(found, NewPlacement):
        group = replace(group, delete=_alive(view.all_pods))
    if isinstance(found, _Asked):
        return replace(group, planning=True, unplaceable=found.before), None if waiting else found.question
    if waiting and isinstance(found, NewPlacement):
        return replace(group, planning=True), None
    if isinstance(found, Unplaceable):
        return replace(group, unplaceable=found), None
    unknown = _unknown_cable(observed, view, found.plan)
    if unknown is not None:
        return replace(group, planning=True, unknown=unknown), None
    if step.returns and view.plan is not None and _same_place(view.plan, found.plan) and ready(group.report):
        # The better placement is no longer available.
        return replace(group, next=NextStep(Step.KEEP)), None
    if step.step is Step.DRAIN:
        return replace(group, drain=True), None
    ranks, fetching = tuple(rank.rank for rank in found.plan.ranks), waits(observed.weights, found.plan)
    create = () if fetching else ranks
    return replace(group, placement=found, delete=_alive(view.all_pods), create=create, fetching=fetching), None


def _unknown_cable(observed: Observed, view: GroupView, plan: Plan) -> str | None:
    """Returns a cable whose first report may allow a better placement than this one."""
    asked = observed.deployment.spec.transport
    if view.plan is not None or transport(plan) is not Transport.RING or asked is not Transport.AUTO:
        return None
    if observed.settling_seconds.get(view.index, 0.0) >= SETTLE_SECONDS:
        return None
    return unknown_rdma(observed.fleet, [rank.node for rank in plan.ranks])


def _same_place(one: Plan, other: Plan) -> bool:
    nodes = ({rank.node for rank in plan.ranks} for plan in (one, other))
    return next(nodes) == next(nodes) and transport(one) == transport(other) and set(one.links) == set(other.links)


def _avoided(observed: Observed, view: GroupView, failure: Failure | None = None) -> tuple[AvoidedLink, ...]:
    known = view.status.avoided_links if view.status is not None else ()
    return avoided(known, failure, view.last_epoch, observed.fleet, observed.now)


def _failback(
    observed: Observed, view: GroupView, wanted: Mapping[int, GroupView], fleet: Fleet, avoids: frozenset[str], *, moving: bool
) -> Failback:
    """Whether a group goes back. ``fleet``: without what it avoids. ``moving``: whether another one does."""
    report, known = observed.reports[view.index], observed.advice.get(view.index)
    lost = lost_place(view)
    if lost is None or not (ready(report) or lost.returning):
        return Failback()
    current = known is not None and known.epoch == view.last_epoch and known.holds(observed.fleet, avoids)
    others = not moving and all(ready(observed.reports[index]) for index in wanted if index != view.index)
    return failback(view, report, known if current else None, fleet, observed.deployment.spec.recovery, alone=others)


def _alive(pods: Iterable[Pod]) -> tuple[Pod, ...]:
    return tuple(pod for pod in pods if not pod.terminating)


def _placement(
    observed: Observed,
    settings: Settings,
    account: Account,
    view: GroupView,
    step: NextStep,
    wanted_hash: str,
    answers: Answers,
) -> NewPlacement | Unplaceable | _Asked:
    """The next placement of the group. Macs to avoid are used only if there is no other placement."""
    deployment = observed.deployment
    fleet, taken = account.without(_key(deployment, view.index))
    asked = port_aware_placement.asked_for(
        fleet, deployment, taken, settings.ports, view, step, view.current, observed.corrections
    )
    question = asked.question
    found = answers.where(view.index, question)
    if found is None:
        return _Asked(question, answers.where_before(view.index, question))
    if isinstance(found, Unplaceable):
        return found
    ports = port_aware_placement.ports(found, deployment, asked.taken, settings.ports, asked.kept)
    plan = manifests.make_plan(deployment, view.index, _free_epoch(observed, view), found, ports, view.status)
    return NewPlacement(plan, wanted_hash, found.reason)


def _free_epoch(observed: Observed, view: GroupView) -> int:
    """The next epoch whose pods' names are free: a pod of another owner may have one."""
    meta = observed.deployment.metadata
    for number in range(view.last_epoch + 1, view.last_epoch + 1 + EPOCHS_TRIED):
        name = f"{meta.namespace}/{group_name(meta.name, view.index, number)}"
        if not any(f"{name}-{rank}" in observed.usage.pods for rank in range(MAX_RANKS)):
            return number
    return view.last_epoch + 1


def _ending(observed: Observed, view: GroupView) -> GroupDecision:
    """A group that the spec no longer requires drains, and then its pods are deleted."""
    report = observed.reports[view.index]
    drains = must_drain(view, report, observed.draining_seconds[view.index])
    delete = _alive(view.old_pods if drains else view.all_pods)
    return GroupDecision(view, report, NextStep(Step.DRAIN), delete=delete, drain=drains)


def _collect(observed: Observed) -> tuple[Epoch, ...]:
    """Returns the plans that are no longer needed."""
    found: list[Epoch] = []
    for index, view in observed.groups.items():
        wanted = index < observed.deployment.wanted_groups
        past = view.past if wanted or view.epoch is None else (*view.past, view.epoch)
        left = {pod.epoch for pod in view.all_pods}
        # A plan that cannot be verified is the operator's only as long as the status records it: it is deleted at once.
        found += [epoch for epoch in past if epoch.number not in left or not epoch.proven]
    return tuple(found)


def _service(observed: Observed, routers: RouterSettings | None) -> Manifest | None:
    """The Service, unless it exists as it should. The API server refuses EndpointSlices with loopback addresses."""
    known = observed.service
    if observed.loopback or (known is not None and not _own_service(observed)):
        return None
    manifest = manifests.service(observed.deployment)
    if routers is not None:
        manifest = endpoints.service(manifest, routers)
    if known is None:
        return manifest
    if known.spec.get("selector") and "selector" not in manifest["spec"]:
        # An apply removes no field that it does not name.
        manifest["spec"]["selector"] = {}
    # With the UID the API server refuses the update if another Service has the name by now.
    manifest["metadata"]["uid"] = known.uid
    same = manifest["metadata"]["annotations"][ANNOTATION_HASH] == known.hash
    return None if same and endpoints.has_service(known.spec, manifest["spec"]) else manifest


def _endpoint_slice(observed: Observed, routers: RouterSettings | None) -> Manifest | None:
    if routers is None or observed.loopback or (observed.service is not None and not _own_service(observed)):
        return None
    deployment = observed.deployment
    manifest = endpoints.endpoint_slice(deployment, manifests.owner(deployment), observed.routers, routers)
    known = observed.endpoint_slices.get(f"{deployment.metadata.namespace}/{manifest['metadata']['name']}")
    return manifest if known is None or not endpoints.has_slice(known, manifest) else None


def _own_service(observed: Observed) -> bool:
    return observed.service is not None and observed.service.owner == observed.deployment.metadata.uid


def _with_advice(
    observed: Observed, group: GroupDecision, base: Fleet, avoids: frozenset[str]
) -> tuple[GroupDecision, WhatIsBetter | None, float | None]:
    """Adds whether a serving group would get a better placement now. This is only reported: the group is not moved.

    Also the question about it if the answer is not there or too old, and the seconds until it will be too old. ``base``: the
    fleet without what the deployment ``avoids``.
    """
    view, plan = group.view, group.view.plan
    if plan is None or group.next.step is not Step.KEEP or not ready(group.report):
        return group, None, None
    known = observed.advice.get(view.index)
    if known is not None and known.epoch == plan.epoch:
        group = replace(group, better=known.text)
        # A group that has lost its place is about to go back.
        every = ADVICE_SECONDS if lost_place(view) is None else LOST_ADVICE_SECONDS
        left = every - age_seconds(known.time, observed.now)
        if known.holds(observed.fleet, avoids):
            return group, None, None
        if left > 0:
            return group, None, left
    fleet, _ = Account(base, observed.usage, observed.taken).without(_key(observed.deployment, view.index))
    asked = request(observed.deployment.spec, view.current, corrections=observed.corrections)
    return group, WhatIsBetter(fleet, asked, transport(plan), plan.links, plan.split), None


# --- after the writes ------------------------------------------------------------------------------------------------


def _view_after(group: GroupDecision, result: Result) -> GroupView:
    """The group with its pods and plan as the API server returned them."""
    pods = {pod.name: pod for pod in group.view.all_pods}
    for name, pod in result.deleted.items():
        if pod is None:
            pods.pop(name, None)
        else:
            pods[name] = pod
    pods |= {pod.name: pod for pod in result.created}
    return group.view.with_pods(pods.values(), result.epoch)


def views_after(decision: Decision, results: Mapping[int, Result]) -> dict[int, GroupView]:
    """Every group after the round's writes, by index."""
    groups = (*decision.groups, *decision.ending)
    return {group.view.index: _view_after(group, results.get(group.view.index, Result())) for group in groups}


def _predicted(decision: Decision, plan: Plan | None) -> Speed | None:
    if plan is None:
        return None
    observed = decision.observed
    return predicted_speed(plan, observed.fleet, observed.deployment.spec, observed.corrections)


def status_after(decision: Decision, results: Mapping[int, Result], service: Blocked | None = None) -> ModelDeploymentStatus:
    """The status that describes what was decided and what came of it. ``service``: why there is no Service."""
    views = views_after(decision, results)
    outcomes = []
    for group in sorted(decision.groups, key=lambda group: group.view.index):
        result = results.get(group.view.index, Result())
        placed = group.placement is not None and result.epoch is not None
        outcome = Outcome(
            view=views[group.view.index],
            next=group.next,
            report=Report() if placed else group.report,
            placed_now=placed,
            outdated=group.outdated,
            unplaceable=group.unplaceable,
            planning=group.planning,
            unknown=group.unknown,
            blocked=result.blocked,
            better=group.better,
            waits=group.waits,
            avoided=group.avoided,
            lost=group.lost,
            predicted=_predicted(decision, views[group.view.index].plan),
            leaving=group.view.index >= staying(decision.deployment, decision.scaling),
            fetching=waiting_message(decision.observed.weights, group.fetching) if group.fetching else None,
        )
        outcomes.append(outcome)
    wanted = decision.deployment.wanted_groups
    terminating = [
        pod
        for index, view in sorted(views.items())
        for pod in (view.old_pods if index < wanted else (*view.old_pods, *view.pods))
        if pod.terminating
    ]
    highest = max((view.last_epoch for view in views.values()), default=0)
    return status.build(
        decision.deployment,
        outcomes,
        decision.resolution,
        terminating,
        decision.observed.now,
        highest=highest,
        service=service,
        scaling=decision.scaling,
        routers=decision.observed.routers,
        routing=decision.routers,
        weights=shown(decision.observed.weights),
        ending=sum(bool(view.all_pods) for index, view in views.items() if index >= wanted),
    )
