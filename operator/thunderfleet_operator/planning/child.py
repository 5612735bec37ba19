"""``python -m thunderfleet_operator.planning.child``: answers questions from stdin on stdout until stdin ends.

It ends when the operator ends for any reason, because the pipe is closed then. It ends itself when it needs more than
MAX_BYTES.
"""

import ctypes
import os
import pickle
import queue
import resource
import signal
import sys
import threading
import time
import traceback
from typing import Any, BinaryIO, TypeVar

from thunderfleet_operator.placement.inputs.fleet import Fleet, Mac
from thunderfleet_operator.placement.inputs.model import ModelFacts
from thunderfleet_operator.placement.questions import Question, WhatIsBetter, WherePlaced, answer
from thunderfleet_operator.placement.search.hop_graphs import Known
from thunderfleet_operator.planning import wire

T = TypeVar("T")
MAX_BYTES = 2 * 2**30
"""Limit of memory. A fleet of a thousand Macs takes less than a tenth of it."""
LOOK_SECONDS = 0.5
NICE = 5
PR_SET_PDEATHSIG = 1
OUT_OF_MEMORY = f"needed more than {MAX_BYTES // 2**30} GiB of memory; {wire.LIMIT_THE_MACS}"


class Interned:
    """Shares equal models between Macs of different messages, as pickle does within one."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def macs(self, macs: tuple[Mac, ...]) -> tuple[Mac, ...]:
        """These Macs with models that are shared."""
        seen: dict[int, tuple[ModelFacts, ...]] = {}
        for mac in macs:
            shared = seen.get(id(mac.models))
            if shared is None:
                shared = seen[id(mac.models)] = self._share(tuple(model.sharing(self._share) for model in mac.models))
            # No other group has this Mac yet.
            object.__setattr__(mac, "models", shared)
        return macs

    def _share(self, value: T) -> T:
        found: T = self._known.setdefault(value, value)
        return found


def _limit_memory() -> None:
    """Ends this process when it grows beyond MAX_BYTES. On macOS, where the kernel has no such limit, a thread checks it."""
    if sys.platform != "darwin":
        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
        return

    def look() -> None:
        while resource.getrusage(resource.RUSAGE_SELF).ru_maxrss <= MAX_BYTES:
            time.sleep(LOOK_SECONDS)
        print(f"planner: {OUT_OF_MEMORY}", file=sys.stderr, flush=True)
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()


def _end_with_parent() -> None:
    """On Linux the kernel kills this process when the operator ends, also while this one is stopped and reads nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _read(source: BinaryIO, messages: "queue.SimpleQueue[object]") -> None:
    """Reads all the time, to see the end of stdin also while a question is being answered."""
    try:
        while len(header := source.read(wire.LENGTH.size)) == wire.LENGTH.size:
            messages.put(pickle.loads(source.read(wire.size_of(header))))
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _answer(question: Question, known: Known) -> wire.Answered | wire.Failed:
    began = time.process_time()
    try:
        found = answer(question, known)
    except MemoryError:
        return wire.Failed(OUT_OF_MEMORY)
    except Exception as error:
        return wire.Failed(f"failed: {type(error).__name__}: {error}")
    return wire.Answered(found, time.process_time() - began)


def main() -> None:
    """Answers until stdin ends."""
    # Ctrl-C goes to the whole process group; the operator decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_parent()
    # On a busy machine the operator has priority.
    os.nice(NICE)
    answers = os.fdopen(os.dup(1), "wb")
    # Output of libraries must not get between the answers.
    os.dup2(2, 1)
    messages: queue.SimpleQueue[object] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, messages), daemon=True).start()
    _limit_memory()
    fleet, interned, known = Fleet(), Interned(), Known()
    while True:
        message = messages.get()
        if isinstance(message, wire.Changed):
            fleet = fleet.changed(interned.macs(message.macs), message.cables, message.gone)
            continue
        if isinstance(message, wire.AskedWhere):
            found = _answer(WherePlaced(fleet, message.requests), known)
        elif isinstance(message, wire.AskedBetter):
            better = WhatIsBetter(fleet, message.request, message.running, message.links, message.split)
            found = _answer(better, known)
        else:
            raise TypeError(f"unknown message {message!r:.200}")
        answers.write(wire.encode(found))
        answers.flush()


if __name__ == "__main__":
    main()
