"""Every enumeration of the API, each defined once, for all programs. Reasons have a module of their own.

Where ``spec`` allows other values than ``status``, both are subsets of one enumeration: a value that a user requests and the
value that the operator reports are the same object, and nothing is converted between them.
"""

from enum import StrEnum
from typing import Final, Literal


class ConditionType(StrEnum):
    """The types of all conditions."""

    # NodeProfile
    INVENTORY_COMPLETE = "InventoryComplete"
    RDMA_READY = "RDMAReady"
    BRIDGE_FREE = "BridgeFree"
    BENCHMARKS_FRESH = "BenchmarksFresh"
    CLOCK_SYNCHRONIZED = "ClockSynchronized"
    QUARANTINED = "Quarantined"
    # ThunderboltLink
    CONNECTED = "Connected"
    SYMMETRIC = "Symmetric"
    RDMA_USABLE = "RDMAUsable"
    # ModelDeployment
    MODEL_RESOLVED = "ModelResolved"
    PLACED = "Placed"
    BOOTSTRAPPED = "Bootstrapped"
    READY = "Ready"
    BENCHMARKED = "Benchmarked"
    VERIFIED = "Verified"
    DEGRADED = "Degraded"
    # ModelCache
    RESOLVED = "Resolved"
    FETCHED = "Fetched"
    # ModelDeployment and ModelCache: for tools that read only generic conditions.
    RECONCILING = "Reconciling"
    STALLED = "Stalled"


class ConditionStatus(StrEnum):
    """Status of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class FastSynch(StrEnum):
    """Whether CPU and GPU of a rank wait for each other by polling memory."""

    DISABLED = "Disabled"
    ENABLED = "Enabled"


class WiredLimit(StrEnum):
    """Whether a rank keeps its memory from being paged out."""

    AUTO = "Auto"
    """Its reservation."""
    UNLIMITED = "Unlimited"
    """The rank sets no limit, so macOS decides what it pages out."""


class Verify(StrEnum):
    """What a group checks before it serves, and while it does."""

    FULL = "Full"
    """The connections, and that the group continues long passages."""
    QUICK = "Quick"
    """The connections only, before the model is loaded."""
    NONE = "None"


class RuntimeVariable(StrEnum):
    """MLX's variables that a ModelDeployment may set. All others are MLX's description of a group."""

    BFS_MAX_WIDTH = "MLX_BFS_MAX_WIDTH"
    DISABLE_COMPILE = "MLX_DISABLE_COMPILE"
    ENABLE_TF32 = "MLX_ENABLE_TF32"
    MAX_MB_PER_BUFFER = "MLX_MAX_MB_PER_BUFFER"
    MAX_OPS_PER_BUFFER = "MLX_MAX_OPS_PER_BUFFER"
    METAL_GPU_ARCH = "MLX_METAL_GPU_ARCH"
    SDPA_BLOCKS = "MLX_SDPA_BLOCKS"


BITS: Final = (2, 3, 4, 5, 6, 8)
"""Bits of a quantized weight."""
GROUP_SIZES: Final = (32, 64, 128)
"""Group sizes that MLX supports for affine quantization."""


def listed(values: tuple[int, ...]) -> str:
    """The values as text: ``2, 3 or 4``."""
    return f"{', '.join(map(str, values[:-1]))} or {values[-1]}"


class PlacementPolicy(StrEnum):
    """How much faster a placement must be to use more Macs."""

    FEWEST = "Fewest"
    FASTEST = "Fastest"


class Split(StrEnum):
    """How a model is divided over the ranks of a group."""

    AUTO = "Auto"
    TENSOR = "Tensor"
    PIPELINE = "Pipeline"
    NONE = "None"
    """A single rank holds the whole model."""


RequestedSplit = Literal[Split.AUTO, Split.TENSOR, Split.PIPELINE]
"""Values of ``spec.parallelism``."""
PlacedSplit = Literal[Split.TENSOR, Split.PIPELINE, Split.NONE]
"""Values of a placement: never Auto."""


class Transport(StrEnum):
    """The transport between the ranks of a group."""

    AUTO = "Auto"
    JACCL = "JACCL"
    JACCL_RING = "JACCLRing"
    RING = "Ring"
    NONE = "None"
    """A single rank communicates with no other."""


RequestedTransport = Literal[Transport.AUTO, Transport.JACCL, Transport.JACCL_RING, Transport.RING]
"""Values of ``spec.transport``."""
PlacedTransport = Literal[Transport.JACCL, Transport.JACCL_RING, Transport.RING, Transport.NONE]
"""Values of a placement: never Auto."""


class Backend(StrEnum):
    """Name of MLX's communication backend, as ``mlx.core.distributed.init`` takes it."""

    NONE = "none"
    RING = "ring"
    JACCL = "jaccl"


class FaultClass(StrEnum):
    """How the system responds to a failure."""

    RETRY = "Retry"
    """The runner tries again on the same Macs."""
    REPLAN = "Replan"
    """The operator makes another placement and avoids the Mac if it can."""
    CONFIGURE = "Configure"
    """A user must change something first; retries are slow."""
    REBOOT = "Reboot"
    """Only a reboot of the Mac helps; it is quarantined until then."""
    BUG = "Bug"
    """A defect of Thunderfleet or of a library; please report it."""


class FailbackPolicy(StrEnum):
    """Whether a group that lost its placement through a failure moves back to a better one."""

    WHEN_IDLE = "WhenIdle"
    """When no request is running."""
    NEVER = "Never"


class GroupPhase(StrEnum):
    """Lifecycle phase of a group. Only Ready serves requests."""

    PENDING = "Pending"
    """No placement or no pods yet."""
    STARTING = "Starting"
    """Pods exist; rank 0 has not reported yet."""
    WAITING = "Waiting"
    """Not all ranks have joined the rendezvous."""
    PREPARING = "Preparing"
    """Preflight checks run, or the back-off between two attempts elapses."""
    FORMING = "Forming"
    """The ranks connect to each other, in MLX's ``distributed.init``."""
    LOADING = "Loading"
    READY = "Ready"
    DRAINING = "Draining"
    GAVE_UP = "GaveUp"
    """The runner has used its attempts, or the failure needs another placement or a change by a user."""
    BACKING_OFF = "BackingOff"
    """The operator waits before the next placement."""


ReportedGroupPhase = Literal[
    GroupPhase.WAITING,
    GroupPhase.PREPARING,
    GroupPhase.FORMING,
    GroupPhase.LOADING,
    GroupPhase.READY,
    GroupPhase.DRAINING,
    GroupPhase.GAVE_UP,
]
"""The phases that rank 0 reports; the operator adds the others."""


class RankPhase(StrEnum):
    """Lifecycle phase of one rank."""

    PENDING = "Pending"
    STARTING = "Starting"
    ABSENT = "Absent"
    """Its supervisor has not joined the rendezvous."""
    JOINED = "Joined"
    CHECKED = "Checked"
    """Its preflight checks have passed."""
    FORMING = "Forming"
    LOADING = "Loading"
    SERVING = "Serving"
    FAILED = "Failed"


ReportedRankPhase = Literal[
    RankPhase.ABSENT,
    RankPhase.JOINED,
    RankPhase.CHECKED,
    RankPhase.FORMING,
    RankPhase.LOADING,
    RankPhase.SERVING,
    RankPhase.FAILED,
]
"""The phases that rank 0 reports; the operator adds the others."""


class InterfaceKind(StrEnum):
    """Kind of a network interface, derived from its hardware port, bridge membership and addresses."""

    THUNDERBOLT = "Thunderbolt"
    ETHERNET = "Ethernet"
    WIFI = "WiFi"
    BRIDGE = "Bridge"
    VPN = "VPN"
    OTHER = "Other"


class AddressClass(StrEnum):
    """Scope of an IP address."""

    PRIVATE = "Private"
    LINK_LOCAL = "LinkLocal"
    SHARED = "Shared"
    """Carrier-grade NAT space (100.64.0.0/10), which overlay VPNs use."""
    PUBLIC = "Public"
    LOOPBACK = "Loopback"


class RDMADeviceState(StrEnum):
    """State of an RDMA device's port, as ``ibv_devinfo`` prints it."""

    ACTIVE = "Active"
    ACTIVE_DEFER = "ActiveDefer"
    ARMED = "Armed"
    INIT = "Init"
    DOWN = "Down"
    UNKNOWN = "Unknown"


class ReachabilityState(StrEnum):
    """Whether an address answers: one failed round makes it Suspect, three make it Unreachable."""

    REACHABLE = "Reachable"
    SUSPECT = "Suspect"
    UNREACHABLE = "Unreachable"


class MeasurementTransport(StrEnum):
    """The means of a measurement: a TCP socket, RDMA, or MLX's ring."""

    SOCKET = "Socket"
    RDMA = "RDMA"
    RING = "Ring"


class SizedBy(StrEnum):
    """Source of a model's sizes: mlx-lm's dry run, or only the headers of the files."""

    MLX = "MLX"
    FILES = "Files"


class TolerationOperator(StrEnum):
    """How a toleration matches a taint."""

    EXISTS = "Exists"
    EQUAL = "Equal"


class TaintEffect(StrEnum):
    """Effect of a taint."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class KeyPriority(StrEnum):
    """Order of the waiting requests of API keys."""

    HIGH = "High"
    NORMAL = "Normal"
    LOW = "Low"


class CopyPhase(StrEnum):
    """State of a model's files on one Mac."""

    WAITING = "Waiting"
    """For a download, a source, or free disk."""
    COPYING = "Copying"
    QUANTIZING = "Quantizing"
    """A pod on the Mac quantizes the weights, or reads the repository for that."""
    CHECKING = "Checking"
    """All bytes have arrived; hashes are computed."""
    COMPLETE = "Complete"
    """Every file has its hash."""
    PART = "Part"
    """The Mac has every file of the layers that it needs, each with its hash, and not all files of the model."""
    FAILED = "Failed"
    """It is tried again when what the message names has changed."""


class Copies(StrEnum):
    """Which part of a model each Mac of a pipeline fetches."""

    WHOLE = "Whole"
    """All files: a new placement that moves layers needs no copy."""
    SHARD = "Shard"
    """Only the files with the layers of the Mac's rank, and those that all ranks need."""


class CopySource(StrEnum):
    """The source from which a Mac gets a model's files."""

    HUB = "Hub"
    PEER = "Peer"
    """Another Mac."""
