"""Every known message and its fault."""

import signal

import pytest
from thunderfleet_crds.vocabulary import FaultClass
from thunderfleet_runner import faults
from thunderfleet_runner.faults import Stage

# Messages of the ring of mlx 0.32.4; the numbers are errnos of Linux and macOS.
KNOWN = [
    (Stage.INIT, "[ring] Couldn't bind socket (error: 98)", FaultClass.RETRY, "PortTaken", False),
    (Stage.INIT, "[ring] Couldn't bind socket (error: 48)", FaultClass.RETRY, "PortTaken", False),
    (Stage.INIT, "[ring] Couldn't bind socket (error: 99)", FaultClass.REPLAN, "AddressLost", False),
    (Stage.INIT, "[ring] Couldn't bind socket (error: 49)", FaultClass.REPLAN, "AddressLost", False),
    (Stage.INIT, "[ring] Couldn't connect (error: 111)", FaultClass.RETRY, "PeerRefused", True),
    (Stage.INIT, "[ring] Couldn't connect (error: 61)", FaultClass.RETRY, "PeerRefused", True),
    (Stage.INIT, "[ring] Couldn't connect (error: 60)", FaultClass.RETRY, "PeerUnreachable", True),
    (Stage.INIT, "[ring] Couldn't connect (error: 65)", FaultClass.CONFIGURE, "LocalNetworkDenied", False),
    (Stage.SERVE, "RuntimeError: [ring] connection to a peer was lost", FaultClass.RETRY, "PeerLost", True),
    (Stage.SERVE, "[ring] Socket 4 was closed by the peer", FaultClass.RETRY, "PeerLost", True),
    (Stage.SERVE, "[ring] Too many send/recv errors. Failing pending tasks...", FaultClass.RETRY, "PeerLost", True),
    (Stage.INIT, "[ring] Rank cannot be larger than the size of the group", FaultClass.BUG, "BackendRefused", False),
    (Stage.INIT, "NotFormed: rank 1 of 2 was planned, MLX reports rank 0 of 1", FaultClass.BUG, "WrongGroup", False),
    (Stage.INIT, "[jaccl] Couldn't allocate protection domain", FaultClass.REBOOT, "ProtectionDomain", False),
    (Stage.INIT, "[jaccl] Couldn't create queue pair (errno 16)", FaultClass.REBOOT, "QueuePairBusy", False),
    (Stage.INIT, "[jaccl] Changing queue pair to RTR failed with errno 96", FaultClass.CONFIGURE, "QueuePairRefused", False),
    (Stage.INIT, "[ring] Couldn't create socket (error: 24)", FaultClass.RETRY, "SocketRefused", False),
    (Stage.INIT, "[ring] Couldn't enable reuseport (error: 22)", FaultClass.RETRY, "SocketRefused", False),
    (Stage.INIT, "[ring] Couldn't listen (error: 22)", FaultClass.RETRY, "SocketRefused", False),
    (Stage.INIT, "[jaccl] Accept failed (error: 53)", FaultClass.RETRY, "SocketRefused", False),
    (Stage.SERVE, "[ring] Receiving from socket 4 failed with errno 104", FaultClass.RETRY, "PeerLost", True),
    (Stage.SERVE, "[ring] Receiving from socket 4 made no progress", FaultClass.RETRY, "PeerLost", True),
    (Stage.SERVE, "[ring] Sending to socket 4 failed with errno 32", FaultClass.RETRY, "PeerLost", True),
    (
        Stage.INIT,
        "[ring] You need to provide via environment variables both a rank (MLX_RANK) and",
        FaultClass.BUG,
        "BackendRefused",
        False,
    ),
    (
        Stage.INIT,
        "[ring] It is required to have as many connections to the left as to the right",
        FaultClass.BUG,
        "BackendRefused",
        False,
    ),
    (Stage.INIT, "[ring] Rank 1 has no sockets to the right.", FaultClass.BUG, "BackendRefused", False),
    (Stage.SERVE, "[ring] Send only supported to direct neighbors but tried", FaultClass.BUG, "BackendRefused", False),
    (Stage.SERVE, "[ring] Group split not supported.", FaultClass.BUG, "BackendRefused", False),
    (Stage.SERVE, "[ring] sum_scatter not supported.", FaultClass.BUG, "BackendRefused", False),
    (Stage.INIT, "[distributed] Couldn't initialize any backend", FaultClass.BUG, "BackendRefused", False),
    (
        Stage.INIT,
        "RuntimeError: Cannot initialize jaccl distributed backend.",
        FaultClass.CONFIGURE,
        "BackendNotAvailable",
        False,
    ),
    (Stage.INIT, "all_gather_factory must return a callable", FaultClass.BUG, "BackendRefused", False),
    (
        Stage.INIT,
        "[distributed] An all gather factory is only supported with the 'jaccl' backend but 'ring' was provided",
        FaultClass.BUG,
        "BackendRefused",
        False,
    ),
    (Stage.INIT, "[jaccl] Changing queue pair to INIT failed with errno 16", FaultClass.REBOOT, "QueuePairBusy", False),
    (Stage.INIT, "[jaccl] Changing queue pair to RTR failed with errno 22", FaultClass.CONFIGURE, "QueuePairRefused", False),
    (Stage.INIT, "[jaccl] Changing queue pair to RTS failed with errno 22", FaultClass.CONFIGURE, "QueuePairRefused", False),
    (Stage.INIT, "[jaccl] Changing queue pair to RTR failed with errno 60", FaultClass.REPLAN, "QueuePairUnanswered", False),
    (Stage.INIT, "[jaccl] Changing queue pair to RTR failed with errno 110", FaultClass.REPLAN, "QueuePairUnanswered", False),
    (
        Stage.INIT,
        "[jaccl] Creating the queue pair failed with errno 16. Thunderbolt",
        FaultClass.RETRY,
        "QueuePairsSpent",
        False,
    ),
    (
        Stage.INIT,
        "[jaccl] The JACCL mesh supports up to 8 peers but 9 were provided.",
        FaultClass.REPLAN,
        "MeshTooLarge",
        False,
    ),
    (
        Stage.INIT,
        "[jaccl] The configuration should define a valid mesh or a valid ring.",
        FaultClass.BUG,
        "BackendRefused",
        False,
    ),
    (Stage.INIT, "[jaccl] The device file should start with an array", FaultClass.BUG, "BackendRefused", False),
    (Stage.INIT, "[jaccl] Device names should be null, a string or array of strings.", FaultClass.BUG, "BackendRefused", False),
    (Stage.INIT, "[jaccl] Couldn't connect (error: 60)", FaultClass.RETRY, "PeerUnreachable", True),
    (Stage.INIT, "[jaccl] Couldn't connect (error: 65)", FaultClass.CONFIGURE, "LocalNetworkDenied", False),
    (Stage.INIT, "[jaccl] Couldn't connect (error: 61)", FaultClass.RETRY, "PeerRefused", True),
    (Stage.INIT, "[jaccl] Send failed with errno=32", FaultClass.RETRY, "PeerLost", True),
    (
        Stage.INIT,
        "[jaccl] Recv failed: peer closed the side channel (another rank failed during init or exited)",
        FaultClass.RETRY,
        "PeerLost",
        True,
    ),
    (Stage.INIT, "[jaccl] Buffer can be registered once per protection domain", FaultClass.BUG, "BackendRefused", False),
    (
        Stage.SERVE,
        "[METAL] Command buffer execution failed: Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)",
        FaultClass.RETRY,
        "GpuFailed",
        False,
    ),
    (
        Stage.SERVE,
        "Impacting Interactivity (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)",
        FaultClass.RETRY,
        "GpuFailed",
        False,
    ),
    (
        Stage.SERVE,
        "Caused GPU Address Fault Error (0000000b:kIOGPUCommandBufferCallbackErrorPageFault)",
        FaultClass.RETRY,
        "GpuFailed",
        False,
    ),
    (
        Stage.SERVE,
        "Innocent Victim (00000005:kIOGPUCommandBufferCallbackErrorInnocentVictim)",
        FaultClass.RETRY,
        "GpuFailed",
        False,
    ),
    (
        Stage.SERVE,
        "[METAL] Command buffer execution failed: Discarded (victim of GPU error/recovery) (IOAF code 5)",
        FaultClass.RETRY,
        "GpuFailed",
        False,
    ),
    (
        Stage.SERVE,
        "[METAL] Command buffer execution failed: Ignored (for causing prior/excessive GPU errors) "
        "(00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)",
        FaultClass.RETRY,
        "GpuFailed",
        False,
    ),
    (Stage.SERVE, "[metal::malloc] Resource limit (499000) exceeded.", FaultClass.RETRY, "GPUBuffersSpent", False),
    (
        Stage.SERVE,
        "[metal::malloc] Attempting to allocate 135383101952 bytes which is greater than the maximum allowed buffer size of "
        "86586540032 bytes.",
        FaultClass.RETRY,
        "GPUBuffersSpent",
        False,
    ),
    (Stage.LOAD, "[malloc] Unable to allocate 8589934592 bytes.", FaultClass.RETRY, "OutOfMemory", False),
    (Stage.PROVE, "ProofDeadline: an exchange did not end within 60 s", FaultClass.RETRY, "Stalled", False),
    (Stage.LOAD, "ValueError: Model type foo not supported.", FaultClass.CONFIGURE, "ModelUnsupported", False),
    (Stage.LOAD, "ValueError: Missing 3 parameters: model.norm", FaultClass.CONFIGURE, "ModelIncomplete", False),
    (Stage.LOAD, "IncompleteModel: a.safetensors is truncated: tensor w", FaultClass.CONFIGURE, "ModelIncomplete", False),
    (Stage.LOAD, "CannotSplit: qwen2 over 3 ranks: Cannot shard", FaultClass.CONFIGURE, "ModelCannotSplit", False),
    (Stage.LOAD, "[metal::malloc] Insufficient Memory", FaultClass.RETRY, "OutOfMemory", False),
    (Stage.LOAD, "ZeroDivisionError: nobody knows this", FaultClass.BUG, "Unknown", False),
]


# The points at which JACCL fails (with its messages, see the recorded JACCL), and the expected class.
JACCL_POINTS = {
    "find_device": (FaultClass.REPLAN, "DeviceMissing"),
    "open_device": (FaultClass.REPLAN, "PortDown"),
    "protection_domain": (FaultClass.REBOOT, "ProtectionDomain"),
    "completion_queue": (FaultClass.REBOOT, "CompletionQueue"),
    "queue_pair": (FaultClass.RETRY, "QueuePairsSpent"),
    "memory_region": (FaultClass.RETRY, "MemoryRegionsSpent"),
    "init": (FaultClass.RETRY, "QueuePairInit"),
    "gid": (FaultClass.CONFIGURE, "NoIPv4Address"),
    "rtr": (FaultClass.CONFIGURE, "QueuePairRefused"),
    "rts": (FaultClass.CONFIGURE, "QueuePairRefused"),
    "barrier": (FaultClass.RETRY, "PeerLost"),
    "send": (FaultClass.RETRY, "RDMAFailed"),
    "recv": (FaultClass.RETRY, "RDMAFailed"),
}


def test_every_point_at_which_jaccl_fails() -> None:
    from thunderfleet_localcluster.recorded.python import recorded_jaccl

    found = {}
    for point in recorded_jaccl.POINTS:
        stage = Stage.SERVE if point in ("send", "recv") else Stage.INIT
        with pytest.raises((RuntimeError, ValueError)) as caught:
            recorded_jaccl.raise_at(point, "rdma_en2", 1, 96)
        fault = faults.from_text(stage, f"{caught.type.__name__}: {caught.value}")
        found[point] = (fault.fault, fault.reason)
    assert found == JACCL_POINTS


@pytest.mark.parametrize(("stage", "text", "kind", "reason", "echo"), KNOWN)
def test_known_texts(stage: Stage, text: str, kind: FaultClass, reason: str, echo: bool) -> None:
    fault = faults.from_text(stage, text)
    assert (fault.fault, fault.reason, fault.echo) == (kind, reason, echo)
    assert text in fault.message


def test_an_unknown_text_is_kept_whole() -> None:
    assert "x" * 500 in faults.from_text(Stage.LOAD, "x" * 500).message


@pytest.mark.parametrize("code", [0, 1, 134, -signal.SIGABRT])
def test_what_was_written_beats_the_exit_code(code: int) -> None:
    fault = faults.from_exit(Stage.INIT, code, "noise\n[ring] Couldn't bind socket (error: 98)\n")
    assert fault.reason == "PortTaken"


def test_exits_without_a_text_name_the_code_or_the_signal() -> None:
    killed = faults.from_exit(Stage.SERVE, -signal.SIGKILL, "")
    assert (killed.fault, killed.reason) == (FaultClass.RETRY, "RankKilled")
    assert "SIGKILL" in killed.message
    crashed = faults.from_exit(Stage.SERVE, -signal.SIGSEGV, "last line")
    assert (crashed.fault, "last line" in crashed.message) == (FaultClass.BUG, True)
    quiet = faults.from_exit(Stage.SERVE, 0, "")
    assert (quiet.fault, quiet.reason) == (FaultClass.BUG, "RankExited")


@pytest.mark.parametrize("stage", list(Stage))
def test_a_crash_while_connected_over_rdma_points_to_the_cables(stage: Stage) -> None:
    crashed = faults.from_exit(stage, -signal.SIGSEGV, "", rdma=True)
    connected = stage in (Stage.INIT, Stage.PROVE, Stage.LOAD, Stage.CHECK, Stage.SERVE)
    assert (crashed.reason == "RDMAFailed", "kubectl get tbl" in crashed.message) == (connected, connected)
    assert crashed.fault is (FaultClass.RETRY if connected else FaultClass.BUG)
    assert faults.from_exit(stage, -signal.SIGSEGV, "").reason == "RankKilled"
    assert faults.from_exit(stage, -signal.SIGABRT, "", rdma=True).reason == "RankKilled"


def test_an_echo_in_the_tail_stays_an_echo() -> None:
    assert faults.from_exit(Stage.SERVE, 0, "[ring] Socket 4 was closed by the peer").echo
