"""A supervisor of another rank than 0: connects to its leader, joins, and runs no rank without it.

A rank cannot work without the leader, so losing the connection ends the rank. The supervisor joins only when no process of a
rank is left, because the leader takes a join as proof of that.
"""

import asyncio
import logging
import random
import ssl
from collections.abc import Callable

from thunderfleet_crds.exchange.group import GroupState
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.vocabulary import GroupPhase
from thunderfleet_lib.backoff import Backoff

from thunderfleet_runner.group.member import Member
from thunderfleet_runner.net import peers
from thunderfleet_runner.net.connection import Connection
from thunderfleet_runner.net.join import JoinRefused, join_group

log = logging.getLogger(__name__)

RETRY = Backoff(0.1, 0.6)
"""Bounds of the random wait between two attempts to join, so that ranks do not join at the same time. If rank 0 starts last,
the group waits for the longest of these waits."""


class Follower:
    """``hello`` is called again after every answer of rank 0: the model may have changed."""

    def __init__(
        self,
        plan: Plan,
        tls: ssl.SSLContext,
        hello: Callable[[], peers.Hello],
        on_change: Callable[[GroupState], None],
    ) -> None:
        self.plan = plan
        self.member: Member | None = None
        self.released = asyncio.Event()
        """Set when the leader reports that the group has stopped, or is lost while this supervisor waits to exit."""
        self._tls = tls
        self._hello = hello
        self._on_change = on_change
        self._connection: Connection | None = None
        self._leaving = False
        leader = plan.ranks[0]
        self._state = GroupState(
            uid=plan.uid,
            index=plan.index,
            epoch=plan.epoch,
            phase=GroupPhase.WAITING,
            message=f"connecting to rank 0 at {leader.address}:{leader.control_port}",
        )

    @property
    def state(self) -> GroupState:
        """The group's state as last received from rank 0; Waiting, with the reason, without a connection."""
        return self._state

    def report(self, report: peers.Report) -> None:
        """Sends a report to the leader; drops it without a connection."""
        if self._connection is not None:
            self._connection.send(report)

    def leave(self) -> None:
        """Requests that the leader stops the group; ``released`` is set when it has stopped, or at once without a leader."""
        self._leaving = True
        if self._connection is None:
            self.released.set()
        else:
            self._connection.send(peers.Leaving())

    async def run(self) -> None:
        """Joins, and rejoins after every loss, until cancelled."""
        failures, said = 0, ""
        hello: peers.Hello | None = None
        while True:
            try:
                if hello is None:
                    hello = await asyncio.to_thread(self._hello)
                why = await join_group(self.plan, self._tls, hello, self._serve)
                failures, hello = 0, None
            except ConnectionError as error:
                why = str(error)
            except JoinRefused as error:
                why, hello = str(error), None
            if why != said:
                log.warning("not connected to the group, retrying: %s", why)
                said = why
            self._change(self._state.model_copy(update={"phase": GroupPhase.WAITING, "message": why}))
            failures += 1
            await asyncio.sleep(random.uniform(RETRY.first, RETRY.seconds(failures)))

    async def _serve(self, connection: Connection) -> str:
        assert self.member is not None
        log.info("joined %s", connection.peer)
        self._connection = connection
        ticks = 0

        def pulse() -> None:
            nonlocal ticks
            ticks += 1
            if ticks % 2 == 0 and self.member is not None:
                connection.send(self.member.pulse())

        try:
            return await connection.serve(self._ordered, pulse)
        finally:
            self._connection = None
            lost = {"phase": GroupPhase.WAITING, "message": f"lost the connection to {connection.peer}"}
            self._change(self._state.model_copy(update=lost))
            await self.member.settle()
            if self._leaving:
                self.released.set()

    def _ordered(self, text: str) -> None:
        order = peers.ORDER.validate_json(text)
        match order:
            case peers.Beat(state=state):
                if state is not None:
                    self._change(state)
            case peers.Release():
                if self._leaving:
                    self.released.set()
            case _:
                assert self.member is not None
                self.member.order(order)

    def _change(self, state: GroupState) -> None:
        self._state = state
        self._on_change(state)
