"""CPU time and memory of one question.

The kernel enforces both limits. A thread of this process could not, because a template, a regular expression or a tokenizer may
hold the interpreter lock for any time.
"""

import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CPU_SECONDS = 1.0
CONTEXT_TOKENS = 256 * 1024
"""Context for which CPU_SECONDS suffice; a longer one has proportionally more, since tokenizing takes about 1 µs a token."""
MEMORY_BYTES = 1 << 30
"""Memory that a question may use in addition to the tokenizer. The supervisor checks it too, because macOS does not limit
address space."""
EXIT_MEMORY = 4
"""Exit code after a question that needed too much memory."""


def cpu_seconds(context_tokens: int) -> float:
    """CPU seconds of one question about a prompt for this context."""
    return CPU_SECONDS * max(1.0, context_tokens / CONTEXT_TOKENS)


@contextmanager
def cpu(seconds: float) -> Iterator[None]:
    """Ends the process by SIGPROF when the block takes more CPU than ``seconds``, in all threads together."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


@contextmanager
def apart(seconds: float) -> Iterator[None]:
    """A block with a limit of its own, within a block of ``cpu``, whose CPU time is paused meanwhile."""
    left, _ = signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        # A timer of zero seconds would cancel the outer limit, if there is one.
        signal.setitimer(signal.ITIMER_PROF, max(left, 0.001) if left else 0)


def bound_memory(more: int = MEMORY_BYTES) -> None:
    """Limits the address space to ``more`` bytes beyond what is used now, where the system enforces that (Linux)."""
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        used = pages * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + more, used + more))
