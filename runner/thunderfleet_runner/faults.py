"""Classifies failures: from texts, errnos, exit codes, signals and silence to a class, a reason and a message. Pure.

The class decides what happens next (see ``FaultClass``). One table maps texts to classes, and tests try it with every known
message. A message has the whole text of the library, which describes what happened, followed by advice.
"""

import re
import signal
from dataclasses import dataclass, replace
from enum import StrEnum

from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import FaultClass
from thunderfleet_lib.rdma.rules import LEAST_MACOS_TEXT

GRACE_IS_OVER = "the deployment is being stopped or moved, and its grace period is over"
"""Sent to a client whose response a drain has cut."""


class Stage(StrEnum):
    """Where a rank was when it failed."""

    PREFLIGHT = "preflight"
    START = "start"
    INIT = "init"
    PROVE = "prove"
    LOAD = "load"
    CHECK = "check"
    SERVE = "serve"
    STOP = "stop"

    @property
    def during(self) -> str:
        """The stage in a message: after "the rank failed"."""
        return _DURING[self]


_DURING = {
    Stage.PREFLIGHT: "during the preflight checks",
    Stage.START: "before its process had started",
    Stage.INIT: "while the ranks connected to each other",
    Stage.PROVE: "while the ranks checked their connections",
    Stage.LOAD: "while the model was loaded",
    Stage.CHECK: "during the test prompt",
    Stage.SERVE: "while the group served",
    Stage.STOP: "while the group stopped",
}


@dataclass(frozen=True)
class Fault:
    """A classified failure of one rank. ``echo``: it only follows from a peer that failed first."""

    fault: FaultClass
    reason: str
    message: str
    echo: bool = False
    peer: int | None = None
    """The other rank, if the failure is that of the connection to it."""


@dataclass(frozen=True)
class _Rule:
    pattern: re.Pattern[str]
    fault: FaultClass
    reason: str
    advice: str
    echo: bool
    stages: frozenset[Stage]


def _rule(
    pattern: str, fault: FaultClass, reason: str, advice: str, *, echo: bool = False, stages: frozenset[Stage] | None = None
) -> _Rule:
    return _Rule(re.compile(pattern, re.IGNORECASE), fault, reason, advice, echo, stages or frozenset(Stage))


_CANNOT_SPLIT = "this model cannot be split this way; change spec.parallelism or the number of Macs"
_MODEL_FILES = "files of the model are missing or inconsistent: download it again"
_NO_QUEUE_PAIR = "the RDMA device has no free queue pair (it supports about ten): stop other programs on this Mac that use RDMA"
_KILLED = (
    " (out of memory, or killed manually); if this recurs, stop other programs on this Mac or raise spec.memory.headroomPercent"
)
_STACK_STUCK = "this Mac's RDMA stack does not work until the next boot: reboot the Mac"
_CONNECTED = frozenset({Stage.INIT, Stage.PROVE, Stage.LOAD, Stage.CHECK, Stage.SERVE})
_LOADING = frozenset({Stage.LOAD, Stage.CHECK})

# The first rule that matches applies: specific texts before general ones. Errnos are (Linux|macOS).
_RULES: tuple[_Rule, ...] = (
    # Sockets: MLX's ring, and JACCL's own rendezvous.
    _rule(r"(bind socket|bind).*error: (98|48)\)|address already in use", FaultClass.RETRY, Reason.PORT_TAKEN,
          "another process took the port after it was checked; the next attempt uses another port"),
    _rule(r"bind.*error: (99|49)\)|(can't|cannot) assign requested address", FaultClass.REPLAN, Reason.ADDRESS_LOST,
          "this Mac no longer has the planned address"),
    _rule(r"error: 65\)|no route to host", FaultClass.CONFIGURE, Reason.LOCAL_NETWORK_DENIED,
          "the peer's address cannot be reached: check that the peer is on and the cable is plugged in; if so, macOS denies "
          "access: allow the runner on this Mac in System Settings > Privacy & Security > Local Network"),
    _rule(r"connect.*error: (111|61)\)|connection refused", FaultClass.RETRY, Reason.PEER_REFUSED,
          "the peer did not listen in time; if this recurs, read the log of its pod", echo=True),
    _rule(r"connect.*error: (110|60|113|101|51|64)\)|timed out while connecting|network is unreachable", FaultClass.RETRY,
          Reason.PEER_UNREACHABLE, "the peer's address did not answer: check that its Mac is on, and the cables with "
          "`kubectl get tbl`", echo=True),
    _rule(r"couldn't (create socket|enable reuse\w+|listen)|accept failed|too many open files", FaultClass.RETRY,
          Reason.SOCKET_REFUSED, "the system could not create a socket: close programs with many open files on this Mac"),
    _rule(r"\[ring\].*(connection to a peer was lost|closed by the peer|too many send/recv errors)"
          r"|(receiving from|sending to) socket.*(errno|error|made no progress)"
          r"|(send|recv) failed with errno ?=|peer closed the side channel"
          r"|connection reset by peer|broken pipe", FaultClass.RETRY, Reason.PEER_LOST, "a peer left the group", echo=True),
    _rule(r"^ProofDeadline\b", FaultClass.RETRY, Reason.STALLED, "the exchange waits for another rank; check the cables with "
          "`kubectl get tbl`", stages=frozenset({Stage.PROVE})),
    _rule(r"^Diverged\b", FaultClass.RETRY, Reason.DIVERGED, "no wrong token was sent; the next attempt makes the checks of "
          "spec.verify again, which name a Mac or a cable that is faulty", stages=frozenset({Stage.CHECK, Stage.SERVE})),
    # RDMA, in the order in which JACCL uses it.
    _rule(r"could not find device|rdma device .*not found", FaultClass.REPLAN, Reason.DEVICE_MISSING,
          "the planned RDMA device no longer exists: check the cable"),
    _rule(r"rdma device .*(not active|down)|(couldn't|could not) open (rdma )?device", FaultClass.REPLAN,
          Reason.PORT_DOWN,
          "the planned RDMA device is not usable: check the cable"),
    _rule(r"allocate protection domain|protection domain not allocated", FaultClass.REBOOT, Reason.PROTECTION_DOMAIN,
          _STACK_STUCK),
    _rule(r"create completion queue", FaultClass.REBOOT, Reason.COMPLETION_QUEUE,
          _STACK_STUCK),
    _rule(r"creating the queue pair failed", FaultClass.RETRY, Reason.QUEUE_PAIRS_SPENT, _NO_QUEUE_PAIR),
    _rule(r"queue pair.*(errno|error:?) ?16\b|queue pair.*busy", FaultClass.REBOOT, Reason.QUEUE_PAIR_BUSY,
          _STACK_STUCK),
    _rule(r"create queue pair", FaultClass.RETRY, Reason.QUEUE_PAIRS_SPENT, _NO_QUEUE_PAIR),
    _rule(r"register memory region failed", FaultClass.RETRY, Reason.MEMORY_REGIONS_SPENT,
          "the RDMA device has no free memory region (it supports about a hundred): stop other programs on this Mac that "
          "use RDMA"),
    _rule(r"queue pair to INIT", FaultClass.RETRY, Reason.QUEUE_PAIR_INIT,
          "the RDMA device could not initialize a queue pair; if this recurs, reboot this Mac"),
    _rule(r"queue pair to RT[RS].*(errno|error:?) ?(110|60)\b", FaultClass.REPLAN, Reason.QUEUE_PAIR_UNANSWERED,
          "no answer over the cable of the RDMA device: check that it leads to the Mac that `kubectl get tbl` shows, and that "
          "it is a Thunderbolt 5 cable"),
    _rule(r"queue pair to RT[RS]", FaultClass.CONFIGURE, Reason.QUEUE_PAIR_REFUSED,
          "the RDMA device refused the connection, although its address and port are in order: unplug the cable and plug it in "
          "again; if this recurs, reboot both Macs"),
    _rule(r"no IPv4-mapped GID|gid index", FaultClass.CONFIGURE, Reason.NO_IPV4_ADDRESS,
          "the RDMA device has no IPv4 address: a kubelet that runs as root sets one, and `kubectl describe node` shows why it "
          "has not; the condition BridgeFree of the NodeProfile shows whether the interface is in a bridge"),
    _rule(r"(send|recv) failed with error code|wc\.status", FaultClass.RETRY, Reason.RDMA_FAILED,
          "the RDMA device rejected a request: check the cable"),
    _rule(r"mesh supports up to", FaultClass.REPLAN, Reason.MESH_TOO_LARGE,
          "a JACCL mesh has at most 8 ranks: set spec.transport to JACCLRing or Auto"),
    _rule(r"cannot initialize jaccl", FaultClass.CONFIGURE, Reason.BACKEND_NOT_AVAILABLE,
          f"MLX has no JACCL on this Mac: it requires {LEAST_MACOS_TEXT}"),
    _rule(r"need to provide via environment variables|valid (mesh|ring)|device file should|device names should"
          r"|connectivity matrix|can't parse address|registered once per protection|all[ _]gather[ _]factory"
          r"|couldn't initialize any backend"
          r"|as many connections to the left|no sockets to the (right|left)|only supported (to|from) direct neighbors"
          r"|(sum_scatter|group split) not supported"
          r"|Rank cannot be larger|both a rank \(MLX_RANK\)|only valid values for backend",
          FaultClass.BUG, Reason.BACKEND_REFUSED, "MLX rejected the configuration of the group: report a bug"),
    _rule(r"planned rank|was planned, MLX reports|NotFormed|all-sum", FaultClass.BUG, Reason.WRONG_GROUP,
          "MLX formed a group that differs from the plan: report a bug"),
    _rule(r"impacting ?interactivity", FaultClass.RETRY, Reason.GPU_FAILED,
          "macOS aborted a GPU command to keep the display responsive; if this recurs, log out on this Mac, or use it "
          "without a display"),
    _rule(r"GPU (timeout|hang)|CallbackError(Timeout|Hang)", FaultClass.RETRY, Reason.GPU_FAILED,
          "macOS aborted a GPU command that took longer than about 5 s: the GPU is busy with another program, or it waited for "
          "another rank; look for an earlier failure of a rank"),
    _rule(r"GPU address fault|CallbackErrorPageFault", FaultClass.RETRY, Reason.GPU_FAILED,
          "the GPU accessed memory that is not mapped, a defect of MLX or macOS; if this recurs, update both"),
    _rule(r"innocent ?victim|victim of GPU error", FaultClass.RETRY, Reason.GPU_FAILED,
          "macOS reset the GPU because of another command, possibly of another program on this Mac; if this recurs, stop other "
          "programs that use the GPU"),
    _rule(r"prior/excessive GPU errors|Submissions ?Ignored", FaultClass.RETRY, Reason.GPU_FAILED,
          "macOS ignores GPU commands of a process of which earlier ones failed: look for those in the log of the rank; if "
          "this recurs, reboot this Mac"),
    _rule(r"resource limit \(\d+\) exceeded", FaultClass.RETRY, Reason.GPU_BUFFERS_SPENT,
          "MLX reached its limit of GPU buffers: lower spec.memory.concurrentRequests or spec.memory.contextTokens"),
    _rule(r"maximum allowed buffer size", FaultClass.RETRY, Reason.GPU_BUFFERS_SPENT,
          "a step needs a larger buffer than this Mac's GPU allows: lower spec.memory.concurrentRequests or "
          "spec.memory.contextTokens"),
    _rule(r"out ?of ?memory|insufficient memory|cannot allocate memory|std::bad_alloc|malloc\] unable to allocate",
          FaultClass.RETRY, Reason.OUT_OF_MEMORY,
          "this Mac ran out of memory: stop other programs on it, or raise spec.memory.headroomPercent"),
    _rule(r"model type .* not supported|trust_remote_code", FaultClass.CONFIGURE, Reason.MODEL_UNSUPPORTED,
          "mlx-lm does not support this model; choose another model or another version of mlx-lm"),
    _rule(r"^KernelWrong\b", FaultClass.REPLAN, Reason.KERNEL_WRONG,
          "the GPU of this Mac or its version of MLX computes wrong results: "
          "reboot this Mac and update macOS; if this recurs, report a bug", stages=_LOADING),
    _rule(r"^LayerWrong\b", FaultClass.CONFIGURE, Reason.SPLIT_WRONG,
          "the model is split incorrectly: set spec.parallelism to Pipeline, "
          "or change the number of Macs, and report a bug", stages=_LOADING),
    _rule(r"^CannotSplit\b", FaultClass.CONFIGURE, Reason.MODEL_CANNOT_SPLIT,
          _CANNOT_SPLIT, stages=_LOADING),
    _rule(r"^IncompleteModel\b", FaultClass.CONFIGURE, Reason.MODEL_INCOMPLETE,
          _MODEL_FILES, stages=_LOADING),
    _rule(r"not divisible|does not support (tensor|pipeline)|cannot be (split|sharded)|no attribute 'shard'|can't be divided",
          FaultClass.CONFIGURE, Reason.MODEL_CANNOT_SPLIT, _CANNOT_SPLIT),
    _rule(r"missing \d+ parameters|received \d+ parameters not in model|no safetensors|no such file|not found in .*safetensors",
          FaultClass.CONFIGURE, Reason.MODEL_INCOMPLETE, _MODEL_FILES,
          stages=_LOADING),
)  # fmt: skip


def from_text(stage: Stage, text: str) -> Fault:
    """The fault for an error's text. A text that matches no rule is a Bug, with the whole text."""
    seen = " ".join(text.split()) or "no reason given"
    for rule in _RULES:
        if stage in rule.stages and rule.pattern.search(text):
            return Fault(rule.fault, rule.reason, f"{seen}: {rule.advice}", rule.echo)
    return Fault(FaultClass.BUG, Reason.UNKNOWN, f"failed {stage.during}: {seen}")


def from_exit(stage: Stage, returncode: int, tail: str, *, rdma: bool = False) -> Fault:
    """The fault of a rank that exited without a Failed message. ``tail`` is the end of its output, ``rdma`` if it used JACCL.

    Exit codes are unreliable (0 or 134 on failure), so the text is matched first, whatever the code.
    """
    how = _ending(returncode)
    if tail.strip():
        fault = from_text(stage, tail)
        if fault.reason != "Unknown":
            return replace(fault, message=f"the rank {how} {stage.during}: {fault.message}")
    last = " ".join(tail.strip().splitlines()[-3:])
    said = f"; last output: {last}" if last else ""
    if rdma and -returncode == signal.SIGSEGV and stage in _CONNECTED:
        text = (
            f"the rank {how} {stage.during}: MLX over RDMA ends in this way when a cable is unplugged during a transfer; check "
            f"the cables of this Mac with `kubectl get tbl`{said}"
        )
        return Fault(FaultClass.RETRY, Reason.RDMA_FAILED, text)
    if returncode < 0:
        kind = FaultClass.RETRY if -returncode in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT) else FaultClass.BUG
        hint = _KILLED if -returncode == signal.SIGKILL else ""
        return Fault(kind, Reason.RANK_KILLED, f"the rank {how} {stage.during}{hint}{said}")
    return Fault(FaultClass.BUG, Reason.RANK_EXITED, f"the rank {how} {stage.during}{said}")


def _ending(returncode: int) -> str:
    if returncode >= 0:
        return f"exited with code {returncode}"
    try:
        return f"was killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was killed by signal {-returncode}"


def init_deadline(seconds: int, missing: str) -> Fault:
    """The group did not form in time; ``missing`` names the ranks that did not report. MLX's init itself has no limit."""
    check = "if this recurs, check the cables of these Macs with `kubectl get tbl`"
    text = f"the group did not form within {seconds} s: no answer from {missing}; {check}"
    return Fault(FaultClass.RETRY, Reason.INIT_DEADLINE, text)


def frozen(seconds: float) -> Fault:
    """The rank's process runs but sends no heartbeats."""
    text = f"the rank has not sent a heartbeat for {seconds:g} s; if this recurs, check the load of its Mac"
    return Fault(FaultClass.RETRY, Reason.RANK_FROZEN, text)


def stalled(seconds: float, stage: Stage) -> Fault:
    """All ranks send heartbeats but none makes progress."""
    check = "if this recurs, check the cables with `kubectl get tbl`"
    return Fault(FaultClass.RETRY, Reason.STALLED, f"no rank has completed a step for {seconds:g} s {stage.during}; {check}")


def link_corrupts(where: str, what: str, peer: int | None = None) -> Fault:
    """Data was corrupted between ranks, so answers of this group would be wrong."""
    check = "if a cable carried it, replace that cable, or unplug it, wait ten seconds and plug it in again"
    text = f"data was corrupted on the way {where}: {what}; {check}"
    return Fault(FaultClass.REPLAN, Reason.LINK_CORRUPTS, text, peer=peer)


def output_wrong(what: str) -> Fault:
    """The group does not continue a passage that the same weights continued before."""
    check = "in earlier checks the same weights gave the right answer, so a file of the model, a Mac or a cable is faulty"
    return Fault(FaultClass.BUG, Reason.OUTPUT_WRONG, f"{what}; {check}")


def supervisor_lost(why: str) -> Fault:
    """The connection to a member has ended."""
    return Fault(FaultClass.RETRY, Reason.SUPERVISOR_LOST, f"the connection to the pod of the rank was lost: {why}")


def lasting_port_taken(what: str, address: str, port: int, node: str) -> Fault:
    """A port that the group keeps across attempts is in use; the next placement has another one."""
    text = (
        f"the {what} port {port} on {address} is in use by another program on node {node}; the next placement uses another port"
    )
    return Fault(FaultClass.REPLAN, Reason.PORT_TAKEN, text)


def no_api_keys() -> Fault:
    """The Secret with the API keys has no value. Serving without keys would open the API by mistake."""
    text = "the Secret of spec.server.apiKeySecret has no value; add one for each client, or remove spec.server.apiKeySecret"
    return Fault(FaultClass.CONFIGURE, Reason.NO_API_KEYS, text)


def relay_refused(text: str) -> Fault:
    """Two supervisors of the group do not reach each other, or not yet."""
    return Fault(FaultClass.RETRY, Reason.RELAY_REFUSED, text)


def relay_lost(text: str) -> Fault:
    """The connection between two supervisors broke while ranks run; its cause is reported elsewhere, or is the network."""
    return Fault(FaultClass.RETRY, Reason.RELAY_LOST, text, echo=True)


def tokens_differ(detail: str) -> Fault:
    """Ranks disagree on the test prompt's tokens."""
    return Fault(FaultClass.BUG, Reason.TOKENS_DIFFER, f"the ranks computed different tokens, report a bug: {detail}")


def diverged_again(fault: Fault) -> Fault:
    """Ranks diverge once more, although the checks between the two attempts have found nothing."""
    seen = fault.message.partition(": no wrong token was sent")[0]
    text = f"{seen}; the checks of spec.verify have found nothing since the last time: report a bug"
    return replace(fault, fault=FaultClass.BUG, message=text)
