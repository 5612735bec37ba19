"""What failed while the agent read facts, and what to do about it."""

from __future__ import annotations

from thunderfleet_crds.reasons import Reason
from thunderfleet_lib.host.hostcmd import Failure, FailureKind
from thunderfleet_lib.rdma import rules

from thunderfleet_agent.derive.rdma_ready import THIS_MAC
from thunderfleet_agent.observe.facts import RDMA_SOURCES, Source


def message(source: Source, failure: Failure) -> str:
    """What failed. The models are read by the agent itself, not by a command."""
    return failure.message if source is Source.MODELS else str(failure)


def fix(source: Source, failure: Failure) -> str:
    """What to do about it."""
    rdma = source in RDMA_SOURCES
    if source is Source.MODELS:
        return (
            "if a folder cannot be read, let all users read it (`sudo chmod -R a+rX FOLDER`); if a path is too long, move the "
            "model to a shorter one; if there are too many models, name fewer folders in the chart's value agent.modelFolders"
        )
    if failure.kind is FailureKind.ABSENT:
        if source in (Source.RUNTIME, Source.GPU_MEMORY):
            return "the command is part of Thunderfleet: run the agent from its image, or put the image's bin folder on PATH"
        if rdma:
            return f"RDMA needs {rules.LEAST_MACOS_TEXT}: update this Mac"
        return "the command is part of macOS: put /usr/sbin, /usr/bin and /sbin on PATH"
    if failure.kind is FailureKind.TIMED_OUT:
        if rdma:
            return rules.explain(Reason.STACK_HUNG, THIS_MAC)
        return "run the command on this Mac; if it hangs, reboot this Mac"
    return "run the command on this Mac to see why"
