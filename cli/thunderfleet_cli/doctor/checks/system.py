"""macOS, RDMA, disk, clock and GPU memory. Pure."""

import re

from thunderfleet_crds.reasons import WITHOUT_RDMA, Reason
from thunderfleet_lib.host.gpu_memory import COMMAND as GPU_MEMORY
from thunderfleet_lib.host.gpu_memory import gpu_memory_limit, parse
from thunderfleet_lib.host.hostcmd import Failure, FailureKind, Output
from thunderfleet_lib.host.parsing import ParseError
from thunderfleet_lib.rdma import rules
from thunderfleet_lib.rdma.parse import DEVICES_COMMAND, NO_DEVICES_TEXT, STATUS_COMMAND, parse_devices, parse_status

from thunderfleet_cli.doctor.checks.check import THIS_MAC, Answers, Argv, Check, State, printed, unexpected

VERSION: Argv = ("sw_vers", "-productVersion")
DISK: Argv = ("df", "-Pk", "/")
CLOCK: Argv = ("sntp", "time.apple.com")
MEMORY: Argv = ("sysctl", "-n", "iogpu.wired_limit_mb", "hw.memsize")
MLX_MACOS = (14, 0)
# The kubelet evicts pods at the first, as on any Node, and stops keeping images at the second.
DISK_FAILURE_PERCENT = 10
DISK_WARNING_PERCENT = 15
CLOCK_WARNING_SECONDS = 1.0
CLOCK_FAILURE_SECONDS = 60.0
"""Errors of the clock above this are failures: new certificates and tokens may not be valid yet."""
SYSTEM_MB = 4096
"""Minimum memory for macOS."""

_VERSION = re.compile(r"(\d{1,3})(?:\.(\d{1,3}))?(?:\.\d{1,3})?")
_DISK = re.compile(r"^\S.*?\s+(\d{1,18})\s+(\d{1,18})\s+(\d{1,18})\s+\d{1,3}%\s+/$")
_OFFSET = re.compile(r"(?:^|\) )([+-]\d{1,12}\.\d{1,9}) \+/- (\d{1,12}\.\d{1,9}) \S", re.MULTILINE)


def macos(answers: Answers) -> Check:
    """Whether this version of macOS can run models."""
    text = printed(answers, VERSION).strip()
    found = _VERSION.fullmatch(text)
    if found is None:
        raise unexpected(VERSION, text)
    version = (int(found.group(1)), int(found.group(2) or 0))
    update = "sudo softwareupdate --install --all --restart"
    if version < MLX_MACOS:
        return Check(
            "macos", State.FAILURE, f"MLX needs macOS {'.'.join(map(str, MLX_MACOS))} or newer; this Mac has {text}", update
        )
    if version < rules.LEAST_MACOS:
        finding = f"RDMA over Thunderbolt needs {rules.LEAST_MACOS_TEXT}; this Mac has {text}"
        return Check("macos", State.WARNING, finding, update)
    return Check("macos", State.OK, f"this Mac has macOS {text}")


def rdma(answers: Answers) -> Check:
    """Whether RDMA is switched on and has a device, by the rules of the agent and with its messages."""
    status, devices = answers[STATUS_COMMAND], answers[DEVICES_COMMAND]
    hung = next((str(one) for one in (status, devices) if _failed(one, FailureKind.TIMED_OUT)), "")
    unsupported = str(status) if _failed(status, FailureKind.ABSENT) else ""
    version = answers[VERSION]
    macos = version.text.strip() if isinstance(version, Output) else ""
    if not unsupported and _VERSION.fullmatch(macos) and rules.too_old(macos):
        unsupported = f"this Mac runs macOS {macos}"
    enabled = None if hung or unsupported else parse_status(printed(answers, STATUS_COMMAND))
    names = _devices(answers) if enabled else None
    stack = rules.Stack(not unsupported, bool(hung), enabled, None if names is None else bool(names))
    reason = rules.stack_fault(stack)
    if reason is None:
        return Check("rdma", State.OK, f"RDMA is enabled; number of devices: {len(names or ())}", reason=Reason.READY)
    evidence = {Reason.STACK_HUNG: hung, Reason.RDMA_UNSUPPORTED: unsupported}.get(reason, "")
    state = State.WARNING if reason in WITHOUT_RDMA else State.FAILURE
    # The message describes what to do. No command of the running macOS repairs this, except a restart.
    fix = "sudo shutdown -r now" if reason is Reason.STACK_HUNG else ""
    return Check("rdma", state, rules.explain(reason, THIS_MAC, evidence=evidence), fix, reason)


def _failed(answer: object, kind: FailureKind) -> bool:
    return isinstance(answer, Failure) and answer.kind is kind


def _devices(answers: Answers) -> tuple[str, ...]:
    answer = answers[DEVICES_COMMAND]
    if isinstance(answer, Failure) and NO_DEVICES_TEXT in answer.text + answer.error:
        return ()
    return parse_devices(printed(answers, DEVICES_COMMAND))


def disk(answers: Answers) -> Check:
    """Whether the disk has room."""
    text = printed(answers, DISK)
    found = _DISK.match(text.splitlines()[-1])
    if found is None or not int(found.group(1)):
        raise unexpected(DISK, text.splitlines()[-1])
    size, free = int(found.group(1)), int(found.group(3))
    percent = free * 100 // size
    room = f"{free / 2**20:.0f} GiB of the disk are free ({percent} %)"
    if percent < DISK_FAILURE_PERCENT:
        finding = f"{room}: below {DISK_FAILURE_PERCENT} % the kubelet evicts pods; delete models or other files"
        return Check("disk", State.FAILURE, finding)
    if percent < DISK_WARNING_PERCENT:
        finding = f"{room}: below {DISK_FAILURE_PERCENT} % the kubelet will evict pods; delete models or other files"
        return Check("disk", State.WARNING, finding)
    return Check("disk", State.OK, room)


def clock(answers: Answers) -> Check:
    """Whether the clock is right, within the accuracy of the time server's answer."""
    text = printed(answers, CLOCK)
    found = _OFFSET.findall(text)
    if not found:
        raise unexpected(CLOCK, text)
    offset, uncertainty = float(found[-1][0]), float(found[-1][1])
    wrong = max(0.0, abs(offset) - uncertainty)
    if wrong <= CLOCK_WARNING_SECONDS:
        return Check("clock", State.OK, f"the clock is accurate to {abs(offset) + uncertainty:.3g} s")
    state = State.FAILURE if wrong > CLOCK_FAILURE_SECONDS else State.WARNING
    # A positive offset must be added to the clock.
    found_at = f"the clock is {abs(offset):.3g} s {'behind' if offset > 0 else 'ahead'}"
    finding = f"{found_at}: times in logs are wrong, and with a difference of minutes new certificates may not be valid yet"
    return Check("clock", state, finding, f"sudo sntp -sS {CLOCK[1]}")


def most_gpu_memory(memory_mb: int) -> int:
    """The highest limit in MB that leaves enough memory for macOS."""
    return memory_mb - max(2 * SYSTEM_MB, memory_mb // 10)


def memory_of(answers: Answers) -> tuple[int, int]:
    """The limit that is set (0: the default of macOS) and the memory of this Mac, in MB. Raises ParseError."""
    text = printed(answers, MEMORY)
    lines = text.split()
    if len(lines) != 2 or not all(re.fullmatch(r"\d{1,18}", line) for line in lines):
        raise unexpected(MEMORY, text)
    limit, memory = int(lines[0]), int(lines[1]) >> 20
    if memory <= 0:
        raise ParseError(" ".join(MEMORY), "shows no memory")
    return limit, memory


def gpu_memory(answers: Answers, kept: bool = False) -> Check:
    """The limit of wired GPU memory, and how to raise it. ``kept``: the limit is set again after each restart."""
    limit, memory = memory_of(answers)
    if limit > memory - SYSTEM_MB:
        finding = f"the GPU may wire {limit} MB of {memory} MB, which leaves macOS less than {SYSTEM_MB} MB"
        return Check("gpu-memory", State.WARNING, finding, "sudo thunderfleet doctor --fix --gpu-memory default")
    if limit:
        until = "after each reboot too" if kept else "until the next reboot"
        keep = "" if kept else f"; `sudo thunderfleet doctor --fix --gpu-memory {limit}` keeps that"
        return Check("gpu-memory", State.OK, f"the GPU may wire {limit} MB of {memory} MB, {until}{keep}")
    default = gpu_memory_limit(memory << 20, 0, parse(printed(answers, GPU_MEMORY))) >> 20
    more = most_gpu_memory(memory)
    offer = f"; `sudo thunderfleet doctor --fix --gpu-memory max` raises it to {more} MB" if more > default else ""
    return Check("gpu-memory", State.OK, f"the GPU may wire {default} MB of {memory} MB, the default of macOS{offer}")
