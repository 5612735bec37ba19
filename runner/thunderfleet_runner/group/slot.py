"""A rank's process on this Mac: the one that runs, and the spare that waits for the next attempt.

At most one process exists at a time. A spare has imported MLX by the time its attempt starts; it belongs to no attempt, has no
port and no model, and has no data of the group.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from thunderfleet_runner import protocol
from thunderfleet_runner.host.rankprocess import RankProcess

log = logging.getLogger(__name__)

WARM_SECONDS = 20.0
"""How long a process may take to start and import MLX before another one is tried."""


class Spare:
    """A process that was started to become a rank. ``attempt`` is None until it has one."""

    def __init__(self) -> None:
        self.attempt: int | None = None
        self.up = asyncio.Event()
        """Set when it waits for its attempt, or has exited."""
        self.gone = False
        self.process: RankProcess | None = None


class RankSlot:
    """Starts, hands over and ends the processes of one rank.

    ``on_message`` gets the attempt and the message; ``on_exit`` the attempt and the process that has exited. Neither is called
    for a spare.
    """

    def __init__(
        self,
        command: list[str],
        pid_file: Path,
        on_message: Callable[[int, protocol.FromRank], None],
        on_exit: Callable[[int, RankProcess], None],
    ) -> None:
        self.pid_file = pid_file
        self.process: RankProcess | None = None
        """The rank's process in the current attempt."""
        self.spare: Spare | None = None
        self._command = command
        self._on_message = on_message
        self._on_exit = on_exit
        self._closed = False

    @property
    def spare_pid(self) -> int | None:
        """The process id of a spare that is alive."""
        spare = self.spare
        return spare.process.pid if spare is not None and spare.process is not None and not spare.gone else None

    def send(self, message: protocol.ToRank) -> None:
        """To the rank's process, if there is one."""
        if self.process is not None:
            self.process.send(message)

    async def prepare(self) -> None:
        """Makes sure that a spare exists, unless a rank runs. A failure to start one is only logged: ``launch`` tries again."""
        if self._closed or self.process is not None or self.spare_pid is not None:
            return
        self.spare = None
        try:
            self.spare = await self._spawn()
        except OSError as error:
            log.warning("cannot start a spare rank process: %s", error)

    async def until_warm(self) -> None:
        """Waits until the spare has imported MLX, so that ranks that start together form at once.

        A spare that does not get there is ended; ``launch`` starts another.
        """
        spare = self.spare
        if spare is None:
            return
        try:
            async with asyncio.timeout(WARM_SECONDS):
                await spare.up.wait()
        except TimeoutError:
            log.warning("a rank process did not import MLX within %g s; starting another", WARM_SECONDS)
            await self.dismiss()

    async def launch(self, attempt: int) -> RankProcess:
        """The spare, or a new process, becomes the rank of ``attempt``. Raises OSError when none can be started."""
        await self.prepare()
        spare, self.spare = self.spare, None
        if spare is None:
            spare = await self._spawn()
        assert spare.process is not None
        spare.attempt, self.process = attempt, spare.process
        return spare.process

    async def dismiss(self) -> None:
        """Ends and reaps the spare."""
        spare, self.spare = self.spare, None
        if spare is not None and spare.process is not None and not spare.gone:
            await asyncio.shield(spare.process.leave())

    async def end(self) -> None:
        """Ends and reaps the rank's process."""
        if self.process is not None:
            await asyncio.shield(self.process.end())

    def close(self) -> None:
        """From now on ``prepare`` starts nothing."""
        self._closed = True

    async def _spawn(self) -> Spare:
        """A process that waits for its ``Start``. Raises OSError when it cannot be started."""
        spare = Spare()

        def received(message: protocol.FromRank) -> None:
            if isinstance(message, protocol.Waiting):
                spare.up.set()
            elif spare.attempt is not None:
                self._on_message(spare.attempt, message)

        def exited(_: int) -> None:
            spare.gone = True
            spare.up.set()
            if spare.attempt is not None:
                assert spare.process is not None
                self.process = None
                self._on_exit(spare.attempt, spare.process)

        spare.process = await RankProcess.start(self._command, pid_file=self.pid_file, on_message=received, on_exit=exited)
        return spare
