"""The state of a group for people: its phase, a sentence, and each rank's phase. Pure."""

from collections.abc import Mapping, Sequence

from thunderfleet_crds.exchange.group import RankReport
from thunderfleet_crds.vocabulary import GroupPhase, RankPhase

from thunderfleet_runner.group.decide.attempts import Phase, StateMachine

GROUP_PHASES = {
    Phase.WAITING: GroupPhase.WAITING,
    Phase.CHECKING: GroupPhase.PREPARING,
    Phase.ENDING: GroupPhase.PREPARING,
    Phase.BACKOFF: GroupPhase.PREPARING,
    Phase.FORMING: GroupPhase.FORMING,
    Phase.LOADING: GroupPhase.LOADING,
    Phase.COMPARING: GroupPhase.LOADING,
    Phase.PROVING: GroupPhase.LOADING,
    Phase.READY: GroupPhase.READY,
    Phase.DRAINING: GroupPhase.DRAINING,
    Phase.STOPPING: GroupPhase.DRAINING,
    Phase.STOPPED: GroupPhase.DRAINING,
    Phase.GAVE_UP: GroupPhase.GAVE_UP,
}
_SENTENCES = {
    Phase.COMPARING: "all ranks have loaded; running the test prompt",
    Phase.PROVING: "all ranks have loaded; checking that the group continues known passages correctly",
    Phase.READY: "serving",
    Phase.STOPPING: "stopping the ranks",
    Phase.STOPPED: "stopped",
}


def message(
    machine: StateMachine,
    *,
    failure: str,
    refusals: Mapping[int, str],
    exchange_missing: Sequence[int],
    running: int,
) -> str:
    """The state in one sentence.

    ``failure`` is the message of the last failure, ``refusals`` are those of ranks that may not join, ``exchange_missing`` the
    ranks that JACCL's exchange waits for, ``running`` the number of running requests.
    """
    who = machine.names(machine.waiting_for)
    cause = machine.cause
    where = f" on {machine.names((cause.rank,))}" if cause is not None and cause.rank is not None else ""
    attempt = f"attempt {machine.attempt}"
    match machine.phase:
        case Phase.WAITING:
            refused = "; ".join(text for _, text in sorted(refusals.items()))
            return f"waiting for {who} to join rank 0" + (f"; refused: {refused}" if refused else "")
        case Phase.CHECKING:
            return f"{attempt}: running preflight checks on {who}"
        case Phase.FORMING:
            missing = f"; no JACCL connection data from {machine.names(exchange_missing)}" if exchange_missing else ""
            return f"{attempt}: the ranks connect to each other; waiting for {who}{missing}"
        case Phase.LOADING:
            return f"loading the model on {who}"
        case Phase.ENDING:
            return f"{attempt} failed{where}, ending its ranks: {failure}"
        case Phase.BACKOFF:
            return f"next attempt in {machine.backoff:g} s; the last one failed{where}: {failure}"
        case Phase.GAVE_UP:
            return failure
        case Phase.DRAINING:
            return f"draining: {running} request{'' if running == 1 else 's'} still running"
        case other:
            return _SENTENCES[other]


def rank_report(report: RankReport, machine: StateMachine, refused: str) -> RankReport:
    """``report`` with the rank's phase and, when it failed or may not join, the reason."""
    rank = report.rank
    if rank not in machine.present:
        return report.model_copy(update={"phase": RankPhase.ABSENT, "message": refused and f"refused: {refused}"})
    after_failure = machine.phase in (Phase.ENDING, Phase.BACKOFF, Phase.GAVE_UP)
    if after_failure and machine.cause is not None and machine.cause.rank == rank:
        return report.model_copy(update={"phase": RankPhase.FAILED, "message": machine.cause.fault.message})
    phase = {
        Phase.CHECKING: RankPhase.CHECKED if rank in machine.done else RankPhase.JOINED,
        Phase.FORMING: RankPhase.FORMING,
        Phase.LOADING: RankPhase.LOADING,
        Phase.COMPARING: RankPhase.LOADING,
        Phase.PROVING: RankPhase.LOADING,
        Phase.READY: RankPhase.SERVING,
        Phase.DRAINING: RankPhase.SERVING,
    }.get(machine.phase, RankPhase.JOINED)
    return report.model_copy(update={"phase": phase, "message": ""})
