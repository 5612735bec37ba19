"""Writes the NodeProfile and ThunderboltLinks: server-side apply with a field manager per Mac, and only what changed.

Metadata and spec go to the main resource, status to ``/status``; a 404 there means that the object was deleted in between, and
the write starts again. The last applied value is kept, so that an unchanged object causes no request, and compared with
what the API server has, so that a deleted object or field is written again.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import ValidationError
from thunderfleet_crds.kinds.nodeprofile import Agent, GroupUse, NodeProfile, Reachability
from thunderfleet_crds.kinds.thunderboltlink import Measurement, ThunderboltLink
from thunderfleet_crds.meta.apimodel import ApiModel, ObjectMeta, OwnerReference
from thunderfleet_crds.meta.conditions import Condition
from thunderfleet_crds.names import (
    API_VERSION,
    FIELDS_END,
    LABEL_DOMAIN_PREFIX,
    NODEPROFILE_KIND,
    NODEPROFILE_PLURAL,
    THUNDERBOLTLINK_KIND,
    THUNDERBOLTLINK_PLURAL,
    end_label,
    short_hash,
)
from thunderfleet_lib.kube import ApiError, Json, Kube
from thunderfleet_lib.kube.fields import with_value

from thunderfleet_agent.derive.links import LinkReport
from thunderfleet_agent.derive.profile import Profile
from thunderfleet_agent.publish.fleet_sample import LABEL_BUCKET, SAMPLE_SIZE, bucket, bucket_label, window

log = logging.getLogger(__name__)

Kind = TypeVar("Kind", bound=ApiModel)

PROFILES = f"/apis/{API_VERSION}/{NODEPROFILE_PLURAL}"
LINKS = f"/apis/{API_VERSION}/{THUNDERBOLTLINK_PLURAL}"
MESSAGE_SECONDS = 15.0
"""Minimum interval between profiles that differ only in messages, such as which measurement waits, and why."""


def field_manager(node: str) -> str:
    """The field manager of this Mac's agent."""
    return f"thunderfleet-agent-{short_hash(node)}"


def covers(actual: object, desired: object) -> bool:
    """Whether the actual value contains everything desired; additions of others are ignored."""
    if isinstance(desired, Mapping):
        return isinstance(actual, Mapping) and all(key in actual and covers(actual[key], desired[key]) for key in desired)
    if isinstance(desired, list):
        return isinstance(actual, list) and all(any(covers(one, wanted) for one in actual) for wanted in desired)
    return actual == desired


@dataclass
class Applied:
    """The last applied value of one object, and its UID. Both are None if nothing was applied or the object is gone."""

    uid: str | None = None
    main: Json | None = None
    status: Json | None = None

    def forget(self) -> None:
        self.uid = self.main = self.status = None

    def compare(self, actual: Json | None) -> None:
        """Drops what the API server no longer has."""
        if actual is None or (self.uid is not None and actual["metadata"].get("uid") != self.uid):
            self.forget()
        elif self.main is not None and not covers(actual, self.main):
            self.main = None
        elif self.status is not None and not covers(actual.get("status") or {}, self.status):
            self.status = None


def _same_facts(one: Json, other: Json) -> bool:
    """Whether two statuses differ in the messages of conditions only."""
    return _without_messages(one) == _without_messages(other)


def _without_messages(status: Json) -> Json:
    return status | {"conditions": [condition | {"message": ""} for condition in status.get("conditions") or []]}


@dataclass
class Publisher:
    """The writer of one Mac. ``wrote(kind, result)`` is called for every write."""

    kube: Kube
    node: str
    wrote: Callable[[str, str], None] = lambda kind, result: None
    conditions: tuple[Condition, ...] = ()
    """The conditions as published last."""
    reachability: tuple[Reachability, ...] = ()
    """The reachability that an earlier agent of this Mac published, from the first ``look``."""
    earlier: NodeProfile | None = None
    """This Mac's profile from the first ``look``."""
    address: str | None = None
    """The InternalIP of this Mac's Node, from the last ``look``."""
    groups: tuple[GroupUse, ...] = ()
    """The groups that use this Mac, from the last ``look``."""
    links: tuple[ThunderboltLink, ...] = ()
    """The links of which this Mac is an end, from the last ``look``."""
    message_at: float = math.inf
    """When a message of the profile's conditions that was put off is due (monotonic)."""
    _profile_at: float = -math.inf
    _owner: OwnerReference | None = None
    _profile: Applied = field(default_factory=Applied)
    _links: dict[str, Applied] = field(default_factory=dict)

    @property
    def manager(self) -> str:
        return field_manager(self.node)

    async def look(self) -> None:
        """Reads this Mac's Node, profile and links. Raises ApiError; with status 404 if the Node does not exist."""
        node = await self.kube.get(f"/api/v1/nodes/{self.node}")
        self._owner = OwnerReference(api_version="v1", kind="Node", name=self.node, uid=str(node["metadata"]["uid"]))
        addresses = (node.get("status") or {}).get("addresses") or []
        self.address = next((str(one["address"]) for one in addresses if one.get("type") == "InternalIP"), None)
        actual = await self.kube.get_or_none(f"{PROFILES}/{self.node}")
        self._profile.compare(actual)
        profile = _read(NodeProfile, actual)
        self.groups = profile.status.groups if profile is not None else ()
        if profile is not None and not self.conditions:
            self.earlier = profile
            self.conditions = profile.status.conditions
            self.reachability = profile.status.reachability
        items = await with_value(self.kube, LINKS, FIELDS_END, self.node, end_label(self.node))
        found = {str(item["metadata"]["name"]): item for item in items}
        for name, applied in self._links.items():
            applied.compare(found.get(name))
        self._links = {name: applied for name, applied in self._links.items() if applied.uid is not None}
        links = (_read(ThunderboltLink, item) for item in found.values())
        self.links = tuple(link for link in links if link is not None)

    async def agent_of(self, node: str) -> Agent | None:
        """The agent of a node, read now. Raises ApiError."""
        profile = await self.profile_of(node)
        return profile.status.agent if profile is not None else None

    async def profiles_with(self, uuid: str) -> list[NodeProfile]:
        """The profiles with a port of this domain UUID (lower case). Raises ApiError."""
        items, _ = await self.kube.list(PROFILES, labelSelector=LABEL_DOMAIN_PREFIX + uuid)
        profiles = (_read(NodeProfile, item) for item in items)
        return [profile for profile in profiles if profile is not None]

    async def profile_of(self, node: str) -> NodeProfile | None:
        """The profile of another Mac; None if it has none. Raises ApiError."""
        return _read(NodeProfile, await self.kube.get_or_none(f"{PROFILES}/{node}"))

    async def is_ready(self, node: str) -> bool | None:
        """Whether that Node is Ready; None if it does not exist. Raises ApiError."""
        found = await self.kube.get_or_none(f"/api/v1/nodes/{node}")
        if found is None:
            return None
        conditions = (found.get("status") or {}).get("conditions") or []
        return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)

    async def some_profiles(self) -> list[NodeProfile]:
        """All profiles of a small fleet; of a large one this Mac's sample. Raises ApiError."""
        page = await self.kube.get(PROFILES, limit=SAMPLE_SIZE + 1)
        metadata = page.get("metadata") or {}
        items = page.get("items") or []
        if metadata.get("continue"):
            count = len(items) + int(metadata.get("remainingItemCount") or 0)
            items, _ = await self.kube.list(PROFILES, labelSelector=f"{LABEL_BUCKET} in ({','.join(window(self.node, count))})")
        profiles = (_read(NodeProfile, item) for item in items)
        return [profile for profile in profiles if profile is not None]

    async def apply_profile(self, profile: Profile) -> bool:
        """Applies the profile if it changed; messages alone seldom. Returns whether anything was written. Raises ApiError."""
        if self._owner is None:
            raise RuntimeError("look() comes before apply_profile(): the profile is owned by its Node")
        labels = {**profile.labels, LABEL_BUCKET: bucket_label(bucket(self.node))}
        metadata = ObjectMeta(name=self.node, labels=labels, owner_references=(self._owner,))
        main, status = NodeProfile(metadata=metadata).dump(), profile.status.dump()
        main.pop("status", None)
        self.message_at = self._message_at(main, status)
        if self.message_at < math.inf:
            return False
        wrote = await self._apply(f"{PROFILES}/{self.node}", NODEPROFILE_KIND, self.node, self._profile, main, status)
        self.conditions = profile.status.conditions
        if wrote:
            self._profile_at = time.monotonic()
        return wrote

    def _message_at(self, main: Json, status: Json) -> float:
        """When a profile that differs from the last one in messages only is due, if that is later than now."""
        applied, due = self._profile, self._profile_at + MESSAGE_SECONDS
        if time.monotonic() >= due or applied.main != main or applied.status is None:
            return math.inf
        return due if applied.status != status and _same_facts(applied.status, status) else math.inf

    async def apply_links(
        self, links: Iterable[LinkReport], measured: Callable[[str], tuple[Measurement, ...]] = lambda link: ()
    ) -> int:
        """Applies this Mac's end of each link with its measurements, and removes its end from every other link.

        Returns how many links were written. Raises ApiError.
        """
        written = 0
        wanted = {report.name: report for report in links}
        for name, report in wanted.items():
            main = ThunderboltLink(metadata=ObjectMeta(name=name), spec=report.spec).dump()
            status: Json = {"endpoints": [report.endpoint.dump()]}
            if measurements := measured(name):
                status["measurements"] = [measurement.dump() for measurement in measurements]
            applied = self._links.setdefault(name, Applied())
            written += await self._apply(f"{LINKS}/{name}", THUNDERBOLTLINK_KIND, name, applied, main, status)
        for link in self.links:
            if link.metadata.name not in wanted and any(endpoint.node == self.node for endpoint in link.status.endpoints):
                self._links.setdefault(link.metadata.name, Applied()).status = None
        for name, applied in self._links.items():
            if name not in wanted and applied.status != {}:
                await self._withdraw(name, applied)
                written += 1
        return written

    async def _withdraw(self, name: str, applied: Applied) -> None:
        """Applies a status without endpoints, which removes the entry of this Mac only. The operator deletes the link."""
        try:
            await self._send(f"{LINKS}/{name}/status", THUNDERBOLTLINK_KIND, name, {"status": {}})
        except ApiError as error:
            if error.status != 404:
                raise
            applied.forget()
        # What was applied to the main resource is kept, for a cable that is plugged in again.
        applied.status = {}
        self.links = tuple(link for link in self.links if link.metadata.name != name)

    async def _apply(self, path: str, kind: str, name: str, applied: Applied, main: Json, status: Json) -> bool:
        main.pop("status", None)
        wrote = False
        for attempt in (1, 2, 3):
            if applied.main != main:
                answer = await self._send(path, kind, name, main)
                wrote = True
                uid = str(answer["metadata"].get("uid"))
                if uid != applied.uid:
                    applied.status = None
                applied.uid, applied.main = uid, main
            if applied.status == status:
                return wrote
            try:
                await self._send(f"{path}/status", kind, name, {"status": status})
            except ApiError as error:
                if error.status != 404 or attempt == 3:
                    raise
                applied.forget()
                continue
            applied.status = status
            return True
        return wrote

    async def _send(self, path: str, kind: str, name: str, body: Json) -> Json:
        whole = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, **body}
        try:
            answer = await self.kube.apply(path, whole, self.manager)
        except ApiError as error:
            self.wrote(kind, error.reason)
            raise
        self.wrote(kind, "ok")
        return answer


def _read(kind: type[Kind], item: Json | None) -> Kind | None:
    """The object as a value; None without one, or if it does not match the schema."""
    if item is None:
        return None
    try:
        return kind.load(item)
    except ValidationError as error:
        log.warning("%s %s is invalid: %s", kind.__name__, _name(item), error.errors()[0]["msg"])
        return None


def _name(item: Mapping[str, Any]) -> str:
    return str((item.get("metadata") or {}).get("name"))
