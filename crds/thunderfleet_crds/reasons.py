"""Every reason of the API, defined once, with its meaning and its remedy.

A fault has the same reason wherever it appears: in conditions, in ``lastFailure``, in Events and in logs. The reference of
reasons is generated from this module. To add a reason, add a member here, use it, and run ``make docs``; a reason of RDMA also
needs a rule (``thunderfleet_lib.rdma.rules``).
"""

from enum import StrEnum
from typing import Final

from thunderfleet_crds.vocabulary import ConditionType as On

FAILURE: Final = "lastFailure"
"""The reason appears in ``ModelDeployment.status.groups[].lastFailure`` and, while it lasts, in the condition Degraded."""
EVENT: Final = "Event"
"""The reason appears in Events only."""
REFUSAL: Final = "refusal"
"""Rank 0 refuses a rank that joins the rendezvous; the reason appears in logs and in the message of the group."""


class Reason(StrEnum):
    """A reason: one word in CamelCase, stable across releases."""

    meaning: str
    remedy: str
    """What to do; empty when nothing needs to be done."""
    where: tuple[str, ...]
    """The condition types, and FAILURE, EVENT or REFUSAL, that take this reason."""

    def __new__(cls, value: str, meaning: str = "", remedy: str = "", where: tuple[str, ...] = ()) -> "Reason":
        """Members are written as (value, meaning, remedy, where)."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning, member.remedy, member.where = meaning, remedy, where
        return member

    # RDMA: one table for the Mac (RDMAReady), the cable (RDMAUsable) and the preflight check of a rank (lastFailure).
    RDMA_UNSUPPORTED = (
        "RDMAUnsupported",
        "The Mac has no RDMA over Thunderbolt: macOS is older than 26.2, or it is a virtual machine.",
        "Update macOS to 26.2 or newer; use a physical Mac instead of a virtual machine.",
        (On.RDMA_READY, On.RDMA_USABLE, FAILURE),
    )
    RDMA_DISABLED = (
        "RDMADisabled",
        "RDMA is switched off on the Mac.",
        "Start the Mac in Recovery, run `rdma_ctl enable` in Terminal and restart.",
        (On.RDMA_READY, On.RDMA_USABLE, FAILURE),
    )
    STACK_HUNG = (
        "StackHung",
        "An RDMA command does not return: the RDMA stack of the Mac is stuck.",
        "Reboot the Mac.",
        (On.RDMA_READY, On.RDMA_USABLE, On.QUARANTINED, FAILURE),
    )
    NO_DEVICES = (
        "NoDevices",
        "RDMA is switched on, but the Mac lists no RDMA device.",
        "Use a Mac with Thunderbolt 5.",
        (On.RDMA_READY, On.RDMA_USABLE, FAILURE),
    )
    DEVICE_MISSING = (
        "DeviceMissing",
        "The Mac does not list the RDMA device of the port.",
        "Check the cable and `ibv_devices` on the Mac.",
        (On.RDMA_USABLE, FAILURE),
    )
    PORT_DOWN = (
        "PortDown",
        "The RDMA device is not Active.",
        "Check the cable, check that RDMA is enabled at both ends, and replug the cable to reset the port.",
        (On.RDMA_READY, On.RDMA_USABLE, FAILURE),
    )
    BRIDGE_MEMBER = (
        "BridgeMember",
        "A Thunderbolt port is a member of a bridge, where it has no address of its own and RDMA cannot work.",
        "Run `sudo ifconfig bridge0 deletem en2` and disable the Thunderbolt Bridge service.",
        (On.RDMA_READY, On.BRIDGE_FREE, On.RDMA_USABLE, FAILURE),
    )
    NO_IPV4_ADDRESS = (
        "NoIPv4Address",
        "The RDMA device is Active, but has no GID for an IPv4 address.",
        "Give the port an IPv4 address, such as `sudo ifconfig en2 inet 10.0.0.1/30`.",
        (On.RDMA_READY, On.RDMA_USABLE, FAILURE),
    )
    COMMAND_FAILED = (
        "CommandFailed",
        "A command that Thunderfleet runs on the Mac failed, or its output cannot be parsed.",
        "On the Mac, run the command in the message to see the error.",
        (On.INVENTORY_COMPLETE, On.RDMA_READY, On.BRIDGE_FREE, FAILURE),
    )
    NOT_OBSERVED = (
        "NotObserved",
        "The agent has not finished its first observation.",
        "",
        (On.RDMA_READY, On.BRIDGE_FREE),
    )
    USABLE = ("Usable", "Both ends of the cable are ready for RDMA.", "", (On.RDMA_USABLE,))
    READY = (
        "Ready",
        "RDMAReady: at least one RDMA port is Active and has an address. Ready: every group serves.",
        "",
        (On.RDMA_READY, On.READY),
    )
    END_MISSING = (
        "EndMissing",
        "One end of the cable is not reported.",
        "Check the cable, and that the agent runs on that Mac.",
        (On.RDMA_USABLE,),
    )
    SPEED_UNKNOWN = (
        "SpeedUnknown",
        "Neither end reports a negotiated speed.",
        "Run `system_profiler SPThunderboltDataType` on both Macs.",
        (On.RDMA_USABLE,),
    )
    BELOW_THUNDERBOLT5 = (
        "BelowThunderbolt5",
        "The cable runs at 40 Gb/s or less; RDMA needs Thunderbolt 5.",
        "Use a Thunderbolt 5 cable, without a Thunderbolt 3 or 4 hub in between.",
        (On.RDMA_USABLE,),
    )

    # The Mac.
    COMPLETE = ("Complete", "Every command of the inventory succeeded.", "", (On.INVENTORY_COMPLETE,))
    NO_MEMBERS = ("NoMembers", "No Thunderbolt port is a member of a bridge.", "", (On.BRIDGE_FREE,))
    FRESH = ("Fresh", "Every benchmark has a recent result.", "", (On.BENCHMARKS_FRESH,))
    DISABLED = (
        "Disabled",
        "Benchmarks are switched off.",
        "Set `agent.measure.enabled` in the chart's values.",
        (On.BENCHMARKS_FRESH,),
    )
    PROBE_FAILED = (
        "ProbeFailed",
        "A benchmark failed and will be retried.",
        "See the message; it names the benchmark, the error and the time of the next attempt.",
        (On.BENCHMARKS_FRESH,),
    )
    IN_USE = (
        "InUse",
        "Benchmarks wait because a group uses the Mac or the cable.",
        "",
        (On.BENCHMARKS_FRESH,),
    )
    NOT_MEASURED = (
        "NotMeasured",
        "Nothing has been measured yet, or the results are too old.",
        "",
        (On.BENCHMARKS_FRESH, On.BENCHMARKED),
    )
    QUARANTINED = ("Quarantined", "Placements avoid the Mac until it reboots.", "Reboot the Mac.", (EVENT,))
    REBOOTED = ("Rebooted", "The Mac has rebooted; its quarantine is over.", "", (On.QUARANTINED, EVENT))

    # The cable.
    CONNECTED = ("Connected", "The cable is connected.", "", (On.CONNECTED,))
    CABLE_DEGRADED = (
        "Degraded",
        "The cable carries much less than its negotiated speed.",
        "Use another cable, without a hub in between.",
        (On.CONNECTED,),
    )
    FLAPPING = (
        "Flapping",
        "The cable connects and disconnects often; no group is placed on it.",
        "Reseat both plugs; if that does not help, replace the cable.",
        (On.CONNECTED,),
    )
    NOTHING_PLUGGED_IN = (
        "NothingPluggedIn",
        "One end reports that nothing is plugged in: the other Mac is off, or the cable was pulled.",
        "Switch the other Mac on, or plug the cable in.",
        (On.CONNECTED,),
    )
    UNPLUGGED = ("Unplugged", "Neither end detects the other.", "Plug the cable in.", (On.CONNECTED,))
    REMOVED = ("Removed", "The cable has been unplugged; its ThunderboltLink is deleted.", "", (EVENT,))
    NODES_NOT_READY = (
        "NodesNotReady",
        "Neither end's Node is Ready.",
        "Switch the Macs on, or check their kubelets.",
        (On.CONNECTED,),
    )
    NODE_NOT_READY = (
        "NodeNotReady",
        "The Node is not Ready.",
        "Switch the Mac on, or check its kubelet.",
        (On.CONNECTED, FAILURE),
    )
    BOTH_ENDS = ("BothEnds", "Both ends detect each other.", "", (On.SYMMETRIC,))
    ONE_END = (
        "OneEnd",
        "Only one end detects the other, because a display or hub is in between. The link works.",
        "No action is required; connect the Macs directly to detect the link at both ends.",
        (On.SYMMETRIC,),
    )
    NO_END = ("NoEnd", "Neither end detects the other.", "Plug the cable in.", (On.SYMMETRIC,))

    # The model.
    FOUND = ("Found", "The model is on the disk of at least one Mac.", "", (On.MODEL_RESOLVED,))
    MODEL_NOT_FOUND = (
        "ModelNotFound",
        "The model is not on the disk.",
        "Download the model into a model folder of the agents, or change spec.model.",
        (On.MODEL_RESOLVED, On.READY, FAILURE),
    )
    MODEL_INCOMPLETE = (
        "ModelIncomplete",
        "Files of the model are missing, truncated or do not match each other.",
        "Download the model again.",
        (On.MODEL_RESOLVED, On.READY, FAILURE),
    )
    MODEL_UNREADABLE = ("ModelUnreadable", "A file of the model cannot be read.", "Check the permissions.", (FAILURE,))
    MODEL_UNSUPPORTED = (
        "ModelUnsupported",
        "The installed mlx-lm does not support the architecture of the model.",
        "Use another model, or an image with a newer mlx-lm.",
        (FAILURE,),
    )
    MODEL_CANNOT_SPLIT = (
        "ModelCannotSplit",
        "mlx-lm cannot split the model this way.",
        "Change spec.parallelism or the number of Macs.",
        (FAILURE,),
    )
    MODEL_DIFFERS = (
        "ModelDiffers",
        "The Macs of the group have different versions of the model.",
        "Download the same revision to every Mac.",
        (FAILURE, REFUSAL),
    )

    # Placement.
    PLACED = ("Placed", "Every group has a placement. As an Event: a group has a new placement.", "", (On.PLACED, EVENT))
    MOVED = ("Moved", "A group is now placed on other Macs.", "", (EVENT,))
    PENDING = ("Pending", "The operator has not placed all groups yet.", "", (On.PLACED,))
    SCALED_TO_ZERO = ("ScaledToZero", "spec.replicas is 0.", "", (On.PLACED, On.BOOTSTRAPPED, On.READY))
    MODEL_NOT_RESOLVED = (
        "ModelNotResolved",
        "No Mac has the model.",
        "See the condition ModelResolved.",
        (On.PLACED,),
    )
    NO_MACS = ("NoMacs", "The cluster has no Mac.", "Run `thunderfleet-kubelet join` on a Mac.", (On.PLACED, On.READY))
    NO_MAC_FITS = (
        "NoMacFits",
        "No Mac can be used.",
        "See the message and status.unplaceable: they list what is missing on each Mac.",
        (On.PLACED, On.READY),
    )
    NOT_ENOUGH_MACS = (
        "NotEnoughMacs",
        "Fewer Macs can be used than spec.nodes.min.",
        "Lower spec.nodes.min, or add Macs.",
        (On.PLACED, On.READY),
    )
    NO_ROOM = (
        "NoRoom",
        "The model does not fit into the free memory of the Macs.",
        "Free memory, lower spec.memory, use a smaller model or add Macs.",
        (On.PLACED, On.READY),
    )
    NO_PORTS_LEFT = (
        "NoPortsLeft",
        "No free ports remain in the port range of the Macs.",
        "Widen `operator.ports` in the chart's values, or remove groups.",
        (On.PLACED, On.READY),
    )
    NOT_CONNECTED = (
        "NotConnected",
        "The Macs do not have the links that the transport requires.",
        "Connect the cables that the message lists, or change spec.transport.",
        (On.PLACED, On.READY),
    )
    TRANSPORT_UNAVAILABLE = (
        "TransportUnavailable",
        "Too few Macs can use the requested transport.",
        "Change spec.transport, or fix the problems that the message lists.",
        (On.PLACED, On.READY),
    )
    NOT_YET_OBSERVED = (
        "NotYetObserved",
        "The agents have not reported the Macs yet.",
        "",
        (On.PLACED, On.READY),
    )
    FORBIDDEN = (
        "Forbidden",
        "The API server does not allow the operator to create the objects of a group.",
        "Check the chart's RBAC rules and the admission policies of the cluster.",
        (On.PLACED, On.READY, On.DEGRADED),
    )
    POD_SECURITY_FORBIDDEN = (
        "PodSecurityForbidden",
        "The Pod Security level of the namespace forbids runner pods.",
        "Set the namespace label that the message names.",
        (On.PLACED, On.READY),
    )
    NAME_TAKEN = (
        "NameTaken",
        "An object that the operator did not create has a name that the ModelDeployment needs. The operator never changes it.",
        "Delete or rename the object that the message names, or give the ModelDeployment another name.",
        (On.PLACED, On.READY, On.DEGRADED),
    )
    POD_REFUSED = (
        "PodRefused",
        "The API server rejects the runner pods.",
        "See the message.",
        (On.PLACED, On.READY),
    )

    # The groups of a ModelDeployment.
    FORMED = ("Formed", "Every group has formed.", "", (On.BOOTSTRAPPED,))
    NOT_FORMED = ("NotFormed", "Not every group has formed.", "See the message.", (On.BOOTSTRAPPED,))
    PARTLY_READY = ("PartlyReady", "Some groups serve.", "See the message.", (On.READY,))
    MEASURED = ("Measured", "The benchmark of the serving group has succeeded.", "", (On.BENCHMARKED,))
    AS_EXPECTED = ("AsExpected", "No group has failed.", "", (On.DEGRADED,))
    FAILED = ("Failed", "A group has failed for an unknown reason.", "See the message.", (On.DEGRADED,))

    OPERATOR_KEY_LOST = (
        "OperatorKeyLost",
        "A group was placed with a key that the operator no longer has. The group keeps serving; the operator cannot ask it "
        "for its state, so it reads the state from the pods. The next placement uses the new key.",
        "Restore the Secret `thunderfleet-operator-key` and restart the operator, or delete a pod of the group to replace it.",
        (On.DEGRADED,),
    )
    PLAN_CHANGED = (
        "PlanChanged",
        "The ConfigMap of a group's plan is not as the operator wrote it. The group keeps serving; no pod is made from it.",
        "Find out who changed the ConfigMap that the message names. Delete a pod of the group to replace it.",
        (On.DEGRADED,),
    )

    # Failures that the operator detects.
    EVICTED = (
        "Evicted",
        "A pod was evicted, as `kubectl drain` does. The group is placed again without delay; "
        "the eviction does not count against recovery.maxRestarts.",
        "",
        (FAILURE,),
    )
    POD_DELETED = ("PodDeleted", "A pod of the group was deleted.", "", (FAILURE,))
    POD_GONE = ("PodGone", "A pod of the group no longer exists.", "", (FAILURE,))
    POD_FAILED = ("PodFailed", "A pod of the group failed.", "See the message.", (FAILURE,))
    NODE_GONE = ("NodeGone", "The Node of a rank no longer exists.", "", (FAILURE,))
    UNSCHEDULABLE = ("Unschedulable", "A pod cannot be scheduled to its Mac.", "See the message.", (FAILURE,))
    CRASH_LOOP = ("CrashLoop", "A supervisor crashes repeatedly.", "See the log of the pod.", (FAILURE,))
    STOPPED = ("Stopped", "The group has drained and stopped, and is needed again.", "", (FAILURE,))
    GAVE_UP = ("GaveUp", "The runner has used all its attempts.", "See the message.", (FAILURE,))

    # Failures that the runner sees: before a rank starts.
    ADDRESS_LOST = ("AddressLost", "A planned address is no longer on the Mac.", "", (FAILURE,))
    DEVICE_MATRIX = ("DeviceMatrix", "The plan's RDMA devices do not form the planned topology.", "", (FAILURE,))
    PORT_TAKEN = ("PortTaken", "Another program uses a port of the group.", "", (FAILURE,))
    MEMORY_NOT_FREE = (
        "MemoryNotFree",
        "The Mac has less free memory than the placement reserves.",
        "Close other programs on the Mac.",
        (FAILURE,),
    )
    MEMORY_STRANDED = (
        "MemoryStranded",
        "Wired memory of an exited rank has not been released.",
        "Reboot the Mac.",
        (On.QUARANTINED, FAILURE),
    )
    KILLED_TOO_OFTEN = (
        "KilledTooOften",
        "Ranks on this Mac were killed repeatedly.",
        "Find out which program kills them; the message says how often.",
        (FAILURE,),
    )
    RANK_NOT_STARTED = ("RankNotStarted", "The process of a rank cannot be started.", "See the message.", (FAILURE,))
    PREFLIGHT_DEADLINE = ("PreflightDeadline", "The preflight checks did not finish in time.", "", (FAILURE,))

    # Failures that the runner sees: while the group forms.
    INIT_DEADLINE = ("InitDeadline", "MLX's initialization did not finish in time.", "", (FAILURE,))
    CHECK_DEADLINE = ("CheckDeadline", "The check of the formed group did not finish in time.", "", (FAILURE,))
    EXCHANGE_FAILED = ("ExchangeFailed", "The exchange of JACCL's connection data failed.", "", (FAILURE,))
    PEER_REFUSED = ("PeerRefused", "A peer did not start to listen in time.", "", (FAILURE,))
    PEER_UNREACHABLE = ("PeerUnreachable", "The address of a peer did not answer.", "Check the cable.", (FAILURE,))
    LOCAL_NETWORK_DENIED = (
        "LocalNetworkDenied",
        "macOS denies the runner access to the local network.",
        "Allow it in System Settings > Privacy & Security > Local Network.",
        (FAILURE,),
    )
    SOCKET_REFUSED = (
        "SocketRefused",
        "The operating system could not create a socket.",
        "Close programs with many open files.",
        (FAILURE,),
    )
    RELAY_REFUSED = ("RelayRefused", "Two supervisors cannot reach each other.", "Check the network.", (FAILURE,))
    MESH_TOO_LARGE = ("MeshTooLarge", "A JACCL mesh has at most 8 ranks.", "", (FAILURE,))
    BACKEND_NOT_AVAILABLE = (
        "BackendNotAvailable",
        "The installed MLX has no JACCL on this Mac.",
        "Update macOS to 26.2 or newer.",
        (FAILURE,),
    )
    BACKEND_REFUSED = ("BackendRefused", "MLX rejected the configuration of the group.", "Report a bug.", (FAILURE,))
    WRONG_GROUP = ("WrongGroup", "The group that formed is not the planned one.", "Report a bug.", (FAILURE,))
    WRONG_SUM = ("WrongSum", "The first all-reduce of the group gave a wrong sum.", "Report a bug.", (FAILURE,))
    PROTECTION_DOMAIN = (
        "ProtectionDomain",
        "The RDMA stack of the Mac cannot allocate a protection domain.",
        "Reboot the Mac.",
        (On.QUARANTINED, FAILURE),
    )
    COMPLETION_QUEUE = (
        "CompletionQueue",
        "The RDMA stack of the Mac cannot create a completion queue.",
        "Reboot the Mac.",
        (On.QUARANTINED, FAILURE),
    )
    QUEUE_PAIR_BUSY = (
        "QueuePairBusy",
        "The RDMA stack of the Mac has not released a queue pair, although no process uses it.",
        "Reboot the Mac.",
        (On.QUARANTINED, FAILURE),
    )
    QUEUE_PAIRS_SPENT = (
        "QueuePairsSpent",
        "The RDMA device has no free queue pair.",
        "End other programs that use RDMA on the Mac.",
        (FAILURE,),
    )
    QUEUE_PAIR_INIT = ("QueuePairInit", "The RDMA device could not initialize a queue pair.", "", (FAILURE,))
    MEMORY_REGIONS_SPENT = (
        "MemoryRegionsSpent",
        "The RDMA device has no free memory region.",
        "End other programs that use RDMA on the Mac.",
        (FAILURE,),
    )

    # Failures that the runner sees: in a group that has formed.
    RDMA_FAILED = ("RDMAFailed", "The RDMA device rejected a work request.", "Check the cable.", (FAILURE,))
    PEER_LOST = ("PeerLost", "A peer left the group.", "", (FAILURE,))
    RELAY_LOST = ("RelayLost", "The connection between two supervisors broke.", "Check the network.", (FAILURE,))
    SUPERVISOR_LOST = ("SupervisorLost", "The connection to a supervisor broke.", "Check the Mac.", (FAILURE,))
    RANK_EXITED = ("RankExited", "The process of a rank exited.", "See the message and the log.", (FAILURE,))
    RANK_KILLED = ("RankKilled", "A signal ended the process of a rank.", "See the message.", (FAILURE,))
    RANK_FROZEN = ("RankFrozen", "A rank's heartbeat stopped.", "", (FAILURE,))
    STALLED = ("Stalled", "No rank makes progress.", "", (FAILURE,))
    GPU_FAILED = ("GpuFailed", "The GPU aborted a command.", "End other programs that use the GPU heavily.", (FAILURE,))
    OUT_OF_MEMORY = ("OutOfMemory", "The Mac ran out of memory.", "End other programs on the Mac.", (FAILURE,))
    TOKENS_DIFFER = ("TokensDiffer", "The ranks computed different tokens.", "Report a bug.", (FAILURE,))
    UNKNOWN = ("Unknown", "Unknown error.", "Report a bug and include the message.", (FAILURE,))

    # Refusals at the rendezvous.
    STRANGER = ("Stranger", "The rank belongs to another group.", "", (REFUSAL,))
    STALE_EPOCH = ("StaleEpoch", "The rank belongs to another placement of the group.", "", (REFUSAL,))
    NO_SUCH_RANK = ("NoSuchRank", "The plan has no such rank.", "", (REFUSAL,))
    WRONG_NODE = ("WrongNode", "The rank is planned on another node.", "", (REFUSAL,))
    RANK_TAKEN = ("RankTaken", "Another supervisor already runs the rank.", "", (REFUSAL,))
    VERSION_DIFFERS = (
        "VersionDiffers",
        "The Macs of the group run different versions of Thunderfleet, mlx or mlx-lm.",
        "Use the same image on every Mac.",
        (REFUSAL,),
    )
    NOT_LEADER = ("NotLeader", "The supervisor is not rank 0.", "", (REFUSAL,))
