"""A rank's process from the formation of its group on: MLX, one process for each attempt.

``start`` has what happens before.

MLX's init, collectives and evaluations block their thread, some the interpreter, without a time limit; so the supervisor
enforces all limits from outside. Three threads: main (all of MLX), a reader (the supervisor's messages; it ends the process
when the supervisor is gone), and the heartbeat.
"""

import base64
import json
import logging
import os
import queue
import random
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from thunderfleet_crds.vocabulary import Backend, Split
from thunderfleet_lib import collector

from thunderfleet_runner import framing, protocol
from thunderfleet_runner.rank.channel import Channel
from thunderfleet_runner.rank.start import NotFormed, Started, all_sum, checked
from thunderfleet_runner.rank.step_clock import COLLECTIVE, LOADING, StepClock

if TYPE_CHECKING:
    from thunderfleet_runner.rank.checks.connections import Wrong
    from thunderfleet_runner.rank.engine import Engine

log = logging.getLogger("thunderfleet.rank")

RankStage = Literal["init", "prove", "load", "check", "serve", "stop"]


class Corrupted(RuntimeError):
    """A value arrived changed."""

    def __init__(self, wrong: "Wrong") -> None:
        super().__init__(wrong.what)
        self.wrong = wrong


class Rank:
    """The process's state, shared by its threads."""

    def __init__(self, started: Started) -> None:
        self._started = started
        self._channel = Channel(started.end)
        self._clock = StepClock()
        self._engine: Engine | None = None
        self._early: list[protocol.ToRank] = []
        self._gathered: queue.SimpleQueue[protocol.Gathered] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._gathers = 0
        """Number of gathers through the supervisors so far."""
        self.stage: RankStage = "init"
        self._prove_seconds = float("inf")

    def send(self, *messages: Any) -> None:
        """Sends to the supervisor; ends the process when the supervisor is gone."""
        if any(isinstance(message, protocol.Ready) for message in messages):
            self.stage = "serve"
        try:
            self._channel.send(*messages)
        except OSError as error:
            log.error("the supervisor is gone: %s", error)
            os._exit(1)

    # --- threads ---

    def read(self) -> None:
        """The reader thread; ends the process when the supervisor is gone."""
        try:
            while True:
                self._route(self._channel.receive())
        except (EOFError, OSError, framing.BrokenStream) as error:
            log.error("the supervisor's channel ended: %s", error)
        except Exception:
            log.exception("the reader thread failed")
        # The main thread may be blocked in MLX, so only _exit works.
        os._exit(1)

    def _route(self, message: protocol.ToRank) -> None:
        if isinstance(message, protocol.Gathered):
            self._gathered.put(message)
            return
        with self._lock:
            engine = self._engine
            if engine is None:
                self._early.append(message)
                return
        self._dispatch(engine, message)

    def _dispatch(self, engine: "Engine", message: protocol.ToRank) -> None:
        match message:
            case protocol.Turn() | protocol.Check() | protocol.Measure() | protocol.Stop():
                engine.command(message)
            case protocol.Generate(request=request):
                engine.generate(request)
            case protocol.Cancel(id=name):
                engine.cancel(name)
            case protocol.Start() | protocol.Gathered():
                log.error("ignored a late message of type %s", message.type)

    def exchange(self, rank: int, size: int) -> Callable[[bytes, int], bytes]:
        """MLX's ``all_gather_factory``: gathers through the supervisors, which know the peers and enforce the deadline."""

        def gather(part: bytes, length: int) -> bytes:
            self._gathers += 1
            number = self._gathers
            self.send(protocol.Gather(number=number, data=base64.b64encode(part).decode()))
            # No timeout: the supervisor enforces the limit by ending this process.
            answer = self._gathered.get()
            whole = base64.b64decode(answer.data)
            if answer.number != number or len(whole) != size * length:
                raise NotFormed(
                    f"all-gather {number} of rank {rank} expected {size * length} bytes, "
                    f"got {len(whole)} from all-gather {answer.number}"
                )
            return whole

        return gather

    def beat(self) -> None:
        """The heartbeat thread."""
        import mlx.core as mx

        pause = threading.Event()
        while not pause.wait(protocol.HEARTBEAT_SECONDS):
            reading = self._clock.read()
            if self.stage == "prove" and reading.step_seconds > self._prove_seconds:
                self._not_proved()
            self.send(
                protocol.Heartbeat(
                    steps=reading.steps,
                    in_step=reading.in_step,
                    step_seconds=reading.step_seconds,
                    expected_step_seconds=reading.expected.seconds,
                    step_known=reading.expected.known,
                    peak_memory_bytes=mx.get_peak_memory(),
                )
            )

    # --- the main thread ---

    def run(self) -> None:
        """Runs from formation to exit. After an exception, ``stage`` is where it happened."""
        start = protocol.Start.model_validate_json(json.dumps(self._started.start))
        group = self._started.group
        if start.backend is not Backend.RING:
            group = form(start, self.exchange)
            self.send(formed(group))
        threading.Thread(target=self.beat, name="heartbeat", daemon=True).start()
        if group is not None and start.prove:
            self._prove_seconds = start.prove_seconds
            self.stage = "prove"
            with self._clock.work(COLLECTIVE):
                self._prove(start, group)
        self.stage = "load"
        with self._clock.work(LOADING):
            engine = self._load(start, group)
        with self._lock:
            self._engine = engine
            for message in self._early:
                self._dispatch(engine, message)
        self.stage = "check"
        engine.run()
        self.stage = "stop"
        if group is not None:
            from thunderfleet_runner.rank.loading import barrier

            barrier(group)

    def _prove(self, start: protocol.Start, group: Any) -> None:
        """Raises Corrupted."""
        import mlx.core as mx

        from thunderfleet_runner.rank.checks import connections as proof

        gather = self.exchange(start.rank, start.size)

        def tell(part: bytes) -> list[bytes]:
            whole = gather(part, len(part))
            return [whole[at : at + len(part)] for at in range(0, len(whole), len(part))]

        found = proof.prove(group, Path(start.model_path), split=start.split, mesh=start.mesh, step=self._clock.step, tell=tell)
        if found.wrong is not None:
            raise Corrupted(found.wrong)
        self.send(protocol.Proved(exchanges=found.exchanges, seconds=found.seconds))
        mx.clear_cache()
        mx.reset_peak_memory()

    def _not_proved(self) -> None:
        """Ends the process: the main thread waits for a peer, or for data that is lost."""
        self.send(
            protocol.Failed(stage="prove", text=f"ProofDeadline: an exchange did not end within {self._prove_seconds:g} s")
        )
        os._exit(1)

    def _load(self, start: protocol.Start, group: Any) -> "Engine":
        import mlx.core as mx

        with collector.paused():
            from thunderfleet_runner.rank import loading, mlxlm
        from thunderfleet_runner.rank.engine import Engine
        from thunderfleet_runner.rank.grammar import Formats

        mlxlm.forget_wired_limit()
        if start.wired and mx.metal.is_available():
            mx.set_wired_limit(start.memory_bytes)

        def report(loaded: int, total: int, layers: int) -> None:
            self._clock.step()
            self.send(protocol.Progress(loaded_bytes=loaded, total_bytes=total, layers=layers))

        loaded = loading.load(Path(start.model_path), split=start.split, group=group, ranges=start.pipeline, report=report)
        trimmable = mlxlm.always_trimmable(loaded.model)
        alike, kind = 1, machine_kind()
        if group is not None:
            sums: Any = mx.distributed.all_sum(mx.array([int(trimmable), kind], mx.int64), group=group, stream=mx.cpu).tolist()
            trimmable, alike = sums[0] == group.size(), sums[1] == kind * group.size()
        if not trimmable:
            mlxlm.forbid_trimming()
        peak = mx.get_peak_memory()
        products = self._check_products(start, group, loaded.model) if start.check_products else protocol.Products()
        if start.split is Split.PIPELINE:
            mlxlm.evaluate_apart(loaded.model)
        memory = start.memory
        engine = Engine(
            mlxlm.Provider(loaded.model, loaded.tokenizer, start.model, sequences=memory.concurrent_requests),
            self._clock,
            self.send,
            group=group,
            vocabulary=mlxlm.vocabulary(loaded.config),
            memory_tokens=memory.cached_tokens,
            context=memory.context_tokens,
            share_tokens=start.split is Split.PIPELINE,
            equal_logits=start.equal_logits and bool(alike),
            trimmable=trimmable,
            kind=kind,
            formats=Formats(loaded.tokenizer),
        )
        self.send(protocol.Loaded(total_bytes=loaded.nbytes, peak_memory_bytes=peak, products=products))
        return engine

    def _check_products(self, start: protocol.Start, group: Any, model: Any) -> protocol.Products:
        """Raises KernelWrong, LayerWrong."""
        import mlx.core as mx

        from thunderfleet_runner.rank import loading
        from thunderfleet_runner.rank.checks import kernels, layers

        found = kernels.check(model, self._clock.step, first=random.randrange(1 << 16))
        checked = protocol.Products(checked=found.checked, kinds=found.shapes, seconds=found.seconds)
        if group is not None and start.split is Split.TENSOR:
            # The ranks have checked their kernels in different times.
            loading.barrier(group)
            room = start.memory_bytes - mx.get_active_memory()
            compared = layers.check(model, Path(start.model_path), group, room=room, step=self._clock.step)
            checked = checked.model_copy(
                update={
                    "layers": compared.layers,
                    "layers_left": compared.left[: protocol.REASON_CHARACTERS],
                    "seconds": found.seconds + compared.seconds,
                }
            )
        # The peak that counts is that of the model at work.
        mx.reset_peak_memory()
        return checked


Gathers = Callable[[int, int], Callable[[bytes, int], bytes]]


def form(start: protocol.Start, exchange: Gathers) -> Any:
    """Forms MLX's group for other backends than the ring; None for a single rank. Blocks without a limit.

    ``exchange`` is for JACCL: given (rank, size), it returns an all-gather of bytes. Raises NotFormed when the group differs
    from the plan, RuntimeError with MLX's text when it cannot be formed.
    """
    import mlx.core as mx

    if start.backend is Backend.NONE:
        size = mx.distributed.init().size()
        if size != 1:
            raise NotFormed(
                f"a single rank was planned, MLX formed a group of {size}: unset environment variables that start with MLX_"
            )
        return None
    if not start.jaccl_environment:
        group = mx.distributed.init(strict=True, backend="jaccl", all_gather_factory=exchange)
    else:
        group = mx.distributed.init(strict=True, backend="jaccl")
    return checked(group, start.rank, start.size)


def formed(group: Any) -> protocol.Formed:
    """The group's rank, size and all-sum of (rank + 1)."""
    if group is None:
        return protocol.Formed(rank=0, size=1, all_sum=1)
    return protocol.Formed(rank=group.rank(), size=group.size(), all_sum=all_sum(group))


def machine_kind() -> int:
    """A number for this Mac's chip and version of macOS: the same where kernels compute the same bits."""
    import mlx.core as mx

    name = mx.device_info().get("device_name", "")
    return zlib.crc32(f"{name}\0{os.uname().version}".encode()) >> 1


def _failed(stage: RankStage, error: BaseException) -> protocol.Failed:
    if isinstance(error, Corrupted):
        return protocol.Failed(stage=stage, text=error.wrong.what, corrupted=True, peer=error.wrong.peer, echo=error.wrong.echo)
    return protocol.Failed(stage=stage, text=f"{type(error).__name__}: {error}")


def run(started: Started) -> NoReturn:
    """Runs the rank until its end, and exits the process."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    rank = Rank(started)
    threading.Thread(target=rank.read, name="reader", daemon=True).start()
    code = 0
    try:
        rank.run()
    except BaseException as error:
        log.exception("the rank failed in stage %s", rank.stage)
        rank.send(_failed(rank.stage, error))
        code = 1
    sys.stderr.flush()
    # Not sys.exit: MLX's destructors wait for peers that may be gone, and turn success into signals.
    os._exit(code)
