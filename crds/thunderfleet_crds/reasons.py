"""Every reason of the API, defined once, with its meaning and its remedy.

A fault has the same reason wherever it appears: in conditions, in ``lastFailure``, in Events and in logs. The reference of
reasons is generated from this module. To add a reason, add a member here, use it, and run ``make docs``. A fault of RDMA that
the output of a Mac's commands shows also needs a rule in ``thunderfleet_lib.rdma.rules``; a fault that appears only in an error
of MLX needs a rule in ``thunderfleet_runner.faults``.
"""

from enum import StrEnum
from typing import Final

from thunderfleet_crds.vocabulary import ConditionType as On

FAILURE: Final = "lastFailure"
"""The reason appears in ``ModelDeployment.status.groups[].lastFailure`` and, while it lasts, in the condition Degraded. If the
group does not restart automatically, it appears in the condition Stalled too."""
EVENT: Final = "Event"
"""The reason appears in Events only."""
REFUSAL: Final = "refusal"
"""Rank 0 refuses a rank that joins the rendezvous; the reason appears in logs and in the message of the group."""


class Reason(StrEnum):
    """A reason: one word in CamelCase, stable across releases."""

    meaning: str
    remedy: str
    """What to do. Starts with "None" where the fault passes by itself; empty only for a reason that reports no fault."""
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
        "The Mac cannot use RDMA over Thunderbolt: macOS is older than 26.3, or it is a virtual machine.",
        "Update macOS to 26.3 or newer; use a physical Mac instead of a virtual machine.",
        (On.RDMA_READY, On.RDMA_USABLE, On.READY, FAILURE),
    )
    RDMA_DISABLED = (
        "RDMADisabled",
        "RDMA is switched off on the Mac.",
        "Start the Mac in Recovery, run `rdma_ctl enable` in Terminal and restart.",
        (On.RDMA_READY, On.RDMA_USABLE, On.READY, FAILURE),
    )
    STACK_HUNG = (
        "StackHung",
        "An RDMA command does not return: the RDMA stack of the Mac is stuck.",
        "Reboot the Mac.",
        (On.RDMA_READY, On.RDMA_USABLE, On.QUARANTINED, On.READY, FAILURE),
    )
    NO_DEVICES = (
        "NoDevices",
        "RDMA is switched on, but the Mac lists no RDMA device.",
        "Use a Mac with Thunderbolt 5.",
        (On.RDMA_READY, On.RDMA_USABLE, On.READY, FAILURE),
    )
    DEVICE_MISSING = (
        "DeviceMissing",
        "The Mac does not list the RDMA device of the port.",
        "Replug the cable, then run `ibv_devices` on the Mac; if the device stays missing, reboot the Mac.",
        (On.RDMA_READY, On.RDMA_USABLE, On.READY, FAILURE),
    )
    PORT_DOWN = (
        "PortDown",
        "The RDMA device is not Active, or the cable is unplugged.",
        "Check the cable, check that RDMA is enabled at both ends, and replug the cable to reset the port.",
        (On.RDMA_READY, On.RDMA_USABLE, On.READY, FAILURE),
    )
    BRIDGE_MEMBER = (
        "BridgeMember",
        "A Thunderbolt port is a member of a bridge, where it has no address of its own and RDMA cannot work.",
        "A kubelet that runs as root removes the port from the bridge; if it has not, `kubectl describe node` shows why. "
        "Without such a kubelet, run `sudo thunderfleet doctor --fix` on the Mac: it gives the port a network service of "
        "its own, which persists across reboots.",
        (On.RDMA_READY, On.BRIDGE_FREE, On.RDMA_USABLE, On.READY, FAILURE),
    )
    NO_IPV4_ADDRESS = (
        "NoIPv4Address",
        "The RDMA device is Active, but has no GID for an IPv4 address; or a port that a TCP ring uses has no address.",
        "A kubelet that runs as root gives each end of a cable an address; if it has not, `kubectl describe node` shows why. "
        "Without such a kubelet, set addresses of one network for the network services of both ports, such as `sudo "
        "networksetup -setmanual SERVICE 10.0.0.1 255.255.255.252 ''` on one Mac and 10.0.0.2 on the other.",
        (On.RDMA_READY, On.RDMA_USABLE, On.READY, FAILURE),
    )
    COMMAND_FAILED = (
        "CommandFailed",
        "A command that Thunderfleet runs on the Mac failed, its output cannot be parsed, or a model folder cannot be read.",
        "Follow the instructions in the message. If it names a command, run it on the Mac to see the error.",
        (On.INVENTORY_COMPLETE, On.RDMA_READY, On.BRIDGE_FREE, On.RDMA_USABLE, FAILURE),
    )
    NOT_OBSERVED = (
        "NotObserved",
        "The agent has not finished its first observation.",
        "Wait a minute; if the reason persists, read the log of the agent's pod on that Mac.",
        (On.RDMA_READY, On.BRIDGE_FREE, On.RDMA_USABLE, On.CLOCK_SYNCHRONIZED),
    )
    USABLE = ("Usable", "Both ends of the cable are ready for RDMA.", "", (On.RDMA_USABLE,))
    READY = (
        "Ready",
        "RDMAReady: at least one RDMA port is Active and has an address. Ready: every group serves.",
        "",
        (On.RDMA_READY, On.READY, On.RECONCILING),
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
        "Run `system_profiler SPThunderboltDataType` on both Macs. If the port shows no speed, replug the cable, then reboot "
        "the Mac; if it shows one, report a bug with the output.",
        (On.RDMA_USABLE,),
    )
    BELOW_THUNDERBOLT5 = (
        "BelowThunderbolt5",
        "The cable runs at 40 Gb/s or less; RDMA needs Thunderbolt 5.",
        "If both Macs have Thunderbolt 5, use a Thunderbolt 5 cable, without a Thunderbolt 3 or 4 hub in between; otherwise "
        "RDMA is not possible between them.",
        (On.RDMA_USABLE, On.READY, FAILURE),
    )

    # The Mac.
    COMPLETE = (
        "Complete",
        "Every command of the inventory succeeded, and the model folders were read.",
        "",
        (On.INVENTORY_COMPLETE,),
    )
    NO_MEMBERS = ("NoMembers", "No Thunderbolt port is a member of a bridge.", "", (On.BRIDGE_FREE,))
    SYNCHRONIZED = ("Synchronized", "The clock of the Mac agrees with the API server's.", "", (On.CLOCK_SYNCHRONIZED,))
    CLOCK_WRONG = (
        "ClockWrong",
        "The clock of the Mac differs from the API server's by more than 5 seconds.",
        "Run `sudo sntp -sS time.apple.com` on the Mac, and let it set its time automatically. If all Macs have this reason, "
        "set the clock of the API server's machine.",
        (On.CLOCK_SYNCHRONIZED,),
    )
    FRESH = ("Fresh", "Every benchmark has a recent result.", "", (On.BENCHMARKS_FRESH,))
    DISABLED = (
        "Disabled",
        "Benchmarks are disabled.",
        "Set `agent.measure.enabled`, and `enabled` of at least one benchmark, to true in the chart's values.",
        (On.BENCHMARKS_FRESH,),
    )
    BENCHMARK_FAILED = (
        "BenchmarkFailed",
        "A benchmark failed and is retried at the time in the message.",
        "Fix the error in the message; the next attempt clears the reason.",
        (On.BENCHMARKS_FRESH,),
    )
    IN_USE = (
        "InUse",
        "Benchmarks wait because a group or another benchmark uses the Mac or the cable.",
        "None: they run when the Mac or the cable is idle.",
        (On.BENCHMARKS_FRESH,),
    )
    NOT_MEASURED = (
        "NotMeasured",
        "Nothing has been measured yet, or the results are too old.",
        "None: benchmarks run when the Mac, or the first group of the ModelDeployment, is idle.",
        (On.BENCHMARKS_FRESH, On.BENCHMARKED),
    )
    QUARANTINED = (
        "Quarantined",
        "Placements avoid the Mac until it reboots.",
        "Reboot the Mac: `sudo shutdown -r now`.",
        (EVENT,),
    )
    REBOOTED = ("Rebooted", "The Mac has rebooted; its quarantine is over.", "", (On.QUARANTINED, EVENT))

    # The cable.
    CONNECTED = ("Connected", "The cable is connected.", "", (On.CONNECTED,))
    CABLE_DEGRADED = (
        "Degraded",
        "The cable carries less than half of the expected rate, which is its negotiated speed over RDMA and 2 Gb/s over TCP.",
        "Use another cable, without a hub in between.",
        (On.CONNECTED,),
    )
    FLAPPING = (
        "Flapping",
        "The cable connects and disconnects often; no group is placed on it.",
        "Reseat both plugs; if that does not help, replace the cable.",
        (On.CONNECTED, On.READY, FAILURE),
    )
    NOTHING_PLUGGED_IN = (
        "NothingPluggedIn",
        "One end reports that nothing is plugged in: the other Mac is off, or the cable was pulled.",
        "Switch the other Mac on, or plug the cable in.",
        (On.CONNECTED,),
    )
    NO_CARRIER = (
        "NoCarrier",
        "One end detects no Mac behind the hub or display at its port, and its network interface has no carrier: the other "
        "Mac is off, or the cable, hub or display was unplugged at the other end. The other Mac has not reported it.",
        "Plug the cable in; if the other Mac is on, check that its agent runs.",
        (On.CONNECTED,),
    )
    UNPLUGGED = ("Unplugged", "Neither end detects the other.", "Plug the cable in.", (On.CONNECTED,))
    REMOVED = (
        "Removed",
        "Neither end has reported the cable for a while; its ThunderboltLink is deleted.",
        "None, or plug the cable in again.",
        (EVENT,),
    )
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
        "Only one end reports that it detects the other: a display or hub is in between and the link works, or the other Mac "
        "does not report its end. The message states which.",
        "None for a display or hub; connect the Macs directly to detect the link at both ends. Otherwise follow the "
        "instructions in the message.",
        (On.SYMMETRIC,),
    )
    NO_END = (
        "NoEnd",
        "Neither end detects the other, or the link has no report of an end although the Macs detect each other.",
        "Plug the cable in. If the message is about agents, check that they run.",
        (On.SYMMETRIC,),
    )

    # The model.
    FOUND = ("Found", "The model is on the disk of at least one Mac.", "", (On.MODEL_RESOLVED,))
    MODEL_NOT_FOUND = (
        "ModelNotFound",
        "No Mac has the model in a model folder, or the folder of the model is gone from a Mac of the group.",
        "Copy the model to `ORGANIZATION/NAME` below a folder of `agent.modelFolders`, or change spec.model; if the message "
        "names other commits, set spec.model.revision to one of them or to main.",
        (On.MODEL_RESOLVED, On.READY, FAILURE),
    )
    MODEL_INCOMPLETE = (
        "ModelIncomplete",
        "Files of the model are missing, truncated or do not match each other.",
        "Download the model again.",
        (On.MODEL_RESOLVED, On.READY, FAILURE),
    )
    MODEL_UNREADABLE = (
        "ModelUnreadable",
        "A runner pod cannot read a file of the model.",
        "Let all users of the Mac read the folder in the message: `sudo chmod -R a+rX FOLDER`. Every folder above it needs "
        "`a+x` too, so keep models outside home folders.",
        (FAILURE,),
    )
    MODEL_UNSUPPORTED = (
        "ModelUnsupported",
        "The installed mlx-lm does not support the architecture of the model, or is known to compute wrong results with it.",
        "Use another model, or an image with a newer mlx-lm.",
        (On.MODEL_RESOLVED, On.READY, FAILURE),
    )
    MODEL_CANNOT_SPLIT = (
        "ModelCannotSplit",
        "mlx-lm cannot split the model over this number of ranks, or not with this kind of parallelism.",
        "Set spec.parallelism to the other kind, or change spec.nodes.min and spec.nodes.max.",
        (FAILURE,),
    )
    MODEL_DIFFERS = (
        "ModelDiffers",
        "The Macs of the group have different files of the model.",
        "Download the same revision to every Mac.",
        (FAILURE, REFUSAL),
    )

    # Fetching the model: the same reasons in Resolved and Fetched of a ModelCache, and in ModelResolved of its ModelDeployment.
    RESOLVED = (
        "Resolved",
        "The revision was resolved to a commit, whose files and sizes are known.",
        "",
        (On.RESOLVED, On.MODEL_RESOLVED),
    )
    RESOLVING = (
        "Resolving",
        "A pod reads the repository's metadata from the hub.",
        "Wait a minute; if the reason persists, `kubectl describe` the pod that the message names.",
        (On.RESOLVED, On.MODEL_RESOLVED),
    )
    QUANTIZING = (
        "Quantizing",
        "A pod on a Mac quantizes the repository (spec.quantize).",
        "None: status.macs shows the progress. It reads the whole repository first.",
        (On.RESOLVED, On.MODEL_RESOLVED),
    )
    QUANTIZED = (
        "Quantized",
        "The repository was quantized, and the files of the result and their sizes are known.",
        "",
        (On.RESOLVED, On.MODEL_RESOLVED),
    )
    QUANTIZATION_REFUSED = (
        "QuantizationRefused",
        "mlx-lm cannot quantize the repository: its architecture is not known, or its weights are quantized already.",
        "Remove quantize from the spec, use another repository, or an image with a newer mlx-lm.",
        (On.RESOLVED, On.MODEL_RESOLVED),
    )
    FETCHED = ("Fetched", "Every Mac to which the model is assigned has all files that it needs.", "", (On.FETCHED,))
    FETCHING = (
        "Fetching",
        "Macs fetch the model's files from the hub or from other Macs.",
        "None: status.macs shows the progress, and what a copy waits for.",
        (On.FETCHED, On.READY),
    )
    NOTHING_TO_FETCH = (
        "NothingToFetch",
        "No ModelDeployment needs the model, and spec.copies is 0, or no Mac that matches spec.nodeSelector has room for it.",
        "None, or change spec.copies or spec.nodeSelector, or free disk space on a Mac.",
        (On.FETCHED,),
    )
    NOT_RESOLVED = (
        "NotResolved",
        "The files are not known, because the revision was not resolved.",
        "Fix the condition Resolved first.",
        (On.FETCHED,),
    )
    NO_MAC_TO_FETCH = (
        "NoMacToFetch",
        "No Mac can fetch the model: none is Ready, has an agent with a model store, and has enough free disk.",
        "Follow the instructions in the message; the chart's value agent.modelStore names the folder.",
        (On.RESOLVED, On.FETCHED, On.MODEL_RESOLVED),
    )
    GATED = (
        "Gated",
        "The hub gives the repository only to accounts that were granted access.",
        "Request access on the repository's page, put a token of that account into a Secret under the key token, and name the "
        "Secret in spec.tokenSecret (of a ModelDeployment: spec.model.tokenSecret).",
        (On.RESOLVED, On.FETCHED, On.MODEL_RESOLVED),
    )
    TOKEN_REFUSED = (
        "TokenRefused",
        "The hub does not accept the token.",
        "Put a valid token into the Secret; the operator tries again every few minutes.",
        (On.RESOLVED, On.FETCHED, On.MODEL_RESOLVED),
    )
    REPOSITORY_NOT_FOUND = (
        "RepositoryNotFound",
        "The hub has no such repository, or it is private and the token has no access to it.",
        "Check the name; for a private repository name a Secret with a token.",
        (On.RESOLVED, On.FETCHED, On.MODEL_RESOLVED),
    )
    REPOSITORY_MOVED = (
        "RepositoryMoved",
        "The repository has been renamed.",
        "Use the name in the message.",
        (On.RESOLVED, On.MODEL_RESOLVED),
    )
    REVISION_NOT_FOUND = (
        "RevisionNotFound",
        "The repository has no such branch, tag or commit, or it was deleted.",
        "Change the revision; main is the default branch. Macs that have the commit keep it.",
        (On.RESOLVED, On.FETCHED, On.MODEL_RESOLVED),
    )
    HOST_NOT_ALLOWED = (
        "HostNotAllowed",
        (
            "The chart's values do not allow Macs to fetch from the host of the URI, from a host that it redirects to, or "
            "from its address."
        ),
        "Add the host to the chart's value uris.hosts, and to uris.privateHosts if its addresses are private.",
        (On.RESOLVED, On.FETCHED, On.MODEL_RESOLVED),
    )
    MANIFEST_NOT_FOUND = (
        "ManifestNotFound",
        "The folder at the URI has no file SHA256SUMS, or the server refuses to send it without authentication.",
        "Check the URI; write the file with `sha256sum * > SHA256SUMS` in the folder.",
        (On.RESOLVED, On.FETCHED, On.MODEL_RESOLVED),
    )
    MANIFEST_MISMATCH = (
        "ManifestMismatch",
        "The file SHA256SUMS at the URI does not have the hash of the spec. No file of the folder is used.",
        "Set sha256 to the hash in the message if the change is intended; otherwise restore the file.",
        (On.RESOLVED, On.FETCHED, On.MODEL_RESOLVED),
    )
    RATE_LIMITED = (
        "RateLimited",
        "The hub or the server of a URI answers 429: too many requests.",
        "None: the operator tries again at the time in the message. A token raises the limit.",
        (On.RESOLVED, On.FETCHED, On.MODEL_RESOLVED),
    )
    HUB_UNREACHABLE = (
        "HubUnreachable",
        "The Mac cannot connect to the hub, or to the server of a URI.",
        "Check the Mac's network, for the hub also the chart's values hub.endpoint and hub.proxy; or "
        "copy the model to a model folder.",
        (On.RESOLVED, On.FETCHED, On.MODEL_RESOLVED),
    )
    HUB_FAILED = (
        "HubFailed",
        "The hub, or the server of a URI, answers with errors or with unexpected content.",
        "None if the hub is overloaded: the operator tries again. Otherwise check the chart's value hub.endpoint.",
        (On.RESOLVED, On.FETCHED, On.MODEL_RESOLVED),
    )
    FILES_REFUSED = (
        "FilesRefused",
        "The repository has no weights that mlx-lm can load, too many files, or a file whose name or size is not allowed.",
        "Use another repository, such as one of mlx-community.",
        (On.RESOLVED, On.MODEL_RESOLVED),
    )
    COPY_FAILED = (
        "CopyFailed",
        "A Mac cannot save the files that it copies from other Macs.",
        "Follow the instructions in the message; the agent tries again every minute.",
        (On.FETCHED,),
    )
    NO_SOURCE = (
        "NoSource",
        "No Mac that has the model can be reached.",
        (
            "Switch on a Mac that has it, or connect a cable; `kubectl describe np` of the waiting Mac shows which Macs it "
            "cannot reach."
        ),
        (On.FETCHED,),
    )
    WRONG_BYTES = (
        "WrongBytes",
        "A file that arrived does not have the hash that the hub lists for it. It is not used.",
        "None: the file is fetched again. If the reason persists, check proxy and mirror, and the Mac's disk.",
        (On.RESOLVED, On.FETCHED, On.MODEL_RESOLVED),
    )
    DISK_FULL = (
        "DiskFull",
        "The Mac's disk has too little free space for the model.",
        "Free disk space on the Mac in the message, or delete a ModelCache.",
        (On.RESOLVED, On.FETCHED, On.MODEL_RESOLVED),
    )
    SECRET_MISSING = (
        "SecretMissing",
        "The Secret with the token does not exist, or has no key token.",
        "Create it: `kubectl create secret generic NAME --from-literal=token=hf_…`.",
        (On.RESOLVED, On.FETCHED, On.MODEL_RESOLVED),
    )
    DOWNLOAD_FAILED = (
        "DownloadFailed",
        "A pod that reads from the hub failed for another reason.",
        "Follow the instructions in the message; the pod's log has details. The operator tries again.",
        (On.RESOLVED, On.FETCHED, On.MODEL_RESOLVED),
    )

    # Placement.
    PLACED = ("Placed", "Every group has a placement. As an Event: a group has a new placement.", "", (On.PLACED, EVENT))
    FAILBACK_PENDING = (
        "FailbackPending",
        "Every group has a placement. A group that was moved because a cable failed, or because a Mac got another address or "
        "name, goes back to a better placement; the message states when.",
        "None, or set `spec.recovery.failback: Never` to keep the group where it is.",
        (On.PLACED,),
    )
    MOVED = ("Moved", "A group is now placed on other Macs.", "", (EVENT,))
    PENDING = (
        "Pending",
        "The operator has not placed all groups yet.",
        "Wait a few seconds; if the reason persists, read the log of the operator.",
        (On.PLACED,),
    )
    SCALED_TO_ZERO = (
        "ScaledToZero",
        "spec.replicas is 0.",
        "",
        (On.PLACED, On.BOOTSTRAPPED, On.VERIFIED, On.READY, On.RECONCILING),
    )
    SUSPENDED = (
        "Suspended",
        "spec.suspend is true, so no group runs, and no request starts one.",
        "",
        (On.PLACED, On.BOOTSTRAPPED, On.VERIFIED, On.READY, On.RECONCILING),
    )
    ASLEEP = (
        "Asleep",
        "Autoscaling has stopped the last group, because there was no request, or to make room for another model. A request "
        "to a router starts it again.",
        "",
        (On.PLACED, On.BOOTSTRAPPED, On.VERIFIED, On.READY, On.RECONCILING),
    )
    SCALED = ("Scaled", "Autoscaling has changed the number of groups; the message gives the reason.", "", (EVENT,))
    MODEL_NOT_RESOLVED = (
        "ModelNotResolved",
        "No Mac has a complete copy of the model that spec.model names.",
        "Fix the condition ModelResolved first: its message lists what was found.",
        (On.PLACED,),
    )
    NO_MACS = (
        "NoMacs",
        "The cluster has no Mac.",
        "Run `sudo thunderfleet join -` on a Mac, with the line that `thunderfleet init` prints; with another control plane, "
        "`thunderfleet-kubelet join`.",
        (On.MODEL_RESOLVED, On.PLACED, On.READY),
    )
    NO_MAC_FITS = (
        "NoMacFits",
        "No Mac can take a rank: each is cordoned, tainted, quarantined, not Ready, or does not have the model.",
        "Change what status.unplaceable lists for each Mac, for example `kubectl uncordon NODE`.",
        (On.PLACED, On.READY),
    )
    NOT_ENOUGH_MACS = (
        "NotEnoughMacs",
        "Fewer Macs can be used together than spec.nodes.min.",
        "Lower spec.nodes.min, fix the Macs that status.unplaceable lists, or join more Macs.",
        (On.PLACED, On.READY),
    )
    NO_ROOM = (
        "NoRoom",
        "The model does not fit into the free memory of the usable Macs, cannot be split over them, or needs a Mac that "
        "cannot be used now.",
        "Make the changes that the message lists for one set of Macs; otherwise lower spec.memory.contextTokens, "
        "concurrentRequests or cachedTokens, delete another ModelDeployment, or join a Mac.",
        (On.PLACED, On.READY),
    )
    PLANNING_FAILED = (
        "PlanningFailed",
        "The planner failed, or reached its limit of time or memory.",
        "Limit the Macs with spec.nodes.selector and spec.nodes.max; the operator retries. The operator's log has details.",
        (On.PLACED, On.READY),
    )
    NO_PORTS_LEFT = (
        "NoPortsLeft",
        "A Mac has too few free ports in the operator's port ranges, or spec.server.port is in use there.",
        "Widen `operator.ports` or `operator.ringPorts` in the chart's values, unset spec.server.port, or delete a "
        "ModelDeployment.",
        (On.PLACED, On.READY),
    )
    NOT_CONNECTED = (
        "NotConnected",
        "No set of Macs that has room has the links that the transport requires.",
        "Connect or fix the cables that the message lists (`kubectl describe tbl`), or set spec.transport to Auto.",
        (On.PLACED, On.READY),
    )
    TRANSPORT_UNAVAILABLE = (
        "TransportUnavailable",
        "Too few Macs have an MLX that supports the transport, or the transport allows fewer Macs than spec.nodes.min.",
        "Set spec.transport to Auto, update macOS on the Macs that the message lists, or lower spec.nodes.min.",
        (On.PLACED, On.READY),
    )
    NOT_YET_OBSERVED = (
        "NotYetObserved",
        "No Mac is known to be reachable from all others: the agents have not reported yet, or their connections fail.",
        "Wait a minute; if the reason persists, check that the agent's pods run: `kubectl get pods -A -l "
        "app.kubernetes.io/component=agent`, and status.reachability of the NodeProfiles.",
        (On.PLACED, On.READY),
    )
    FORBIDDEN = (
        "Forbidden",
        "The API server does not allow the operator to create the objects of a group.",
        "If the message names a quota or an admission policy of the namespace, change it; otherwise run `helm upgrade` "
        "to restore the chart's RBAC rules.",
        (On.PLACED, On.READY, On.DEGRADED),
    )
    POD_SECURITY_FORBIDDEN = (
        "PodSecurityForbidden",
        "The Pod Security level of the namespace forbids runner pods, which use the host network and host paths.",
        "Run `kubectl label namespace NAMESPACE pod-security.kubernetes.io/enforce=privileged --overwrite`.",
        (On.PLACED, On.READY),
    )
    NAME_TAKEN = (
        "NameTaken",
        "An object that the operator did not create has a name that the ModelDeployment needs. The operator never changes it.",
        "Delete the object that the message names, or create the ModelDeployment under another name; the operator tries "
        "again every 10 seconds.",
        (On.PLACED, On.READY, On.DEGRADED),
    )
    SCHEDULING_GATED = (
        "SchedulingGated",
        "The pods of a group have scheduling gates, such as those of a queue that has not admitted them.",
        "None if a queue admits them when it has room; otherwise contact the owner of the program that sets the gates in the "
        "message.",
        (On.READY,),
    )
    POD_REFUSED = (
        "PodRefused",
        "The API server rejects the runner pods; the message is its answer.",
        "Change the quota, limit range or admission policy that the message names; the operator tries again every 10 seconds.",
        (On.PLACED, On.READY),
    )
    QUOTA_EXCEEDED = (
        "QuotaExceeded",
        "A ResourceQuota of the namespace leaves too little for the objects of a group, such as "
        "requests.thunderfleet.io/gpu-memory for its pods.",
        "Raise the quota that the message names, or delete what uses it; the operator tries again every 10 seconds.",
        (On.PLACED, On.READY, On.DEGRADED),
    )

    # The groups of a ModelDeployment.
    FORMED = ("Formed", "Every group has formed.", "", (On.BOOTSTRAPPED,))
    NOT_FORMED = (
        "NotFormed",
        "The ranks of at least one group have not connected to each other yet.",
        "The message lists what each group waits for; if a rank is missing, run `kubectl describe pod` for the pod "
        "of that rank.",
        (On.BOOTSTRAPPED,),
    )
    PARTLY_READY = (
        "PartlyReady",
        "Some groups serve, others do not.",
        "None for the groups that serve; the message lists what each of the other groups waits for.",
        (On.READY,),
    )
    VERIFIED = (
        "Verified",
        "Every group has passed the checks of spec.verify since its ranks connected; the message lists what was checked.",
        "",
        (On.VERIFIED,),
    )
    NOT_VERIFIED = (
        "NotVerified",
        "A group has not finished the checks of spec.verify.",
        'None: the message states when the next check runs. If it is "not checked yet" although the group is Ready, the image '
        "of a pod is too old to check: use the same image on every Mac.",
        (On.VERIFIED,),
    )
    LENGTH_NOT_PROVED = (
        "LengthNotProved",
        "A group did not continue a passage correctly in the check of its answers. No group with these weights has ever "
        "passed the check with a passage of that length, so it is not known whether the model can.",
        "Compare answers with those of a single Mac, if the model fits on one. spec.verify: Quick leaves out this check.",
        (On.VERIFIED,),
    )
    VERIFICATION_DISABLED = (
        "VerificationDisabled",
        "spec.verify is None, so groups serve unchecked.",
        "Set spec.verify to Full.",
        (On.VERIFIED,),
    )
    MEASURED = ("Measured", "The benchmark of the serving group has succeeded.", "", (On.BENCHMARKED,))
    AS_EXPECTED = (
        "AsExpected",
        "Degraded: no group has failed. Stalled: nothing has to be changed.",
        "",
        (On.DEGRADED, On.STALLED),
    )
    PROGRESSING = (
        "Progressing",
        "The operator works towards the state that the spec describes, and has not reached it yet.",
        "None: wait, or read the conditions that the message names.",
        (On.RECONCILING,),
    )
    ROLLING_OUT = (
        "RollingOut",
        "The groups are replaced one after the other, because the spec has changed.",
        "None: wait. A group is replaced when its requests have ended.",
        (On.RECONCILING,),
    )
    STOPPING = (
        "Stopping",
        "Groups that the spec no longer requires finish their requests and stop.",
        "None: wait.",
        (On.RECONCILING,),
    )
    ACTION_REQUIRED = (
        "ActionRequired",
        "The operator has stopped working on the spec, because a user must change something.",
        "Follow the instructions in the message of the condition Stalled.",
        (On.RECONCILING,),
    )
    FAILED = (
        "Failed",
        "A group has failed, and the status has no record of the failure.",
        "Read the logs: `kubectl logs -l thunderfleet.io/deployment=NAME --prefix --tail=50`.",
        (On.DEGRADED,),
    )

    INTAKE_FAILED = (
        "IntakeFailed",
        "The intake of a serving group, rank 0's process that tokenizes requests, does not answer, has ended by itself or does "
        "not start. Meanwhile requests wait or get status 503.",
        "None if it passes: the intake restarts automatically. Otherwise check whether the Mac of rank 0 is short of memory or "
        "overloaded, and read `kubectl thunderfleet logs NAME`.",
        (On.DEGRADED,),
    )
    OPERATOR_KEY_LOST = (
        "OperatorKeyLost",
        "A group was placed with a key that the operator no longer has. The group keeps serving; the operator cannot query "
        "its state, so it reads the state from the pods. The next placement uses the new key.",
        "Add the lost key from a backup to the Secret `thunderfleet-operator-key` (docs/operate.md), or run `kubectl delete "
        "pod` for a pod of the group, which places it again.",
        (On.DEGRADED,),
    )
    PLAN_CHANGED = (
        "PlanChanged",
        "The ConfigMap of a group's plan was changed after the operator wrote it. The group keeps serving; no pod is created "
        "from it.",
        "Find out who changed the ConfigMap in the message; then run `kubectl delete pod` for a pod of the group, which places "
        "it again.",
        (On.DEGRADED,),
    )

    # Failures that the operator detects.
    EVICTED = (
        "Evicted",
        "A pod was evicted, for example by `kubectl drain`, or by a queue that reclaims its quota. The group is placed again "
        "without delay; the eviction does not count against recovery.maxRestarts.",
        "None; run `kubectl uncordon NODE` when the Mac may be used again.",
        (FAILURE,),
    )
    POD_DELETED = (
        "PodDeleted",
        "A pod of the group was deleted, and not by the operator.",
        "None: the group restarts after a back-off.",
        (FAILURE,),
    )
    POD_GONE = (
        "PodGone",
        "A pod of the group no longer exists.",
        "None: the group restarts after a back-off.",
        (FAILURE,),
    )
    POD_FAILED = (
        "PodFailed",
        "A pod of the group failed as a whole, for example because the kubelet rejected or preempted it.",
        "Fix what the message names on that Mac, such as disk or memory pressure; `kubectl describe node NODE` shows it.",
        (FAILURE,),
    )
    NODE_GONE = (
        "NodeGone",
        "The Node of a rank was deleted.",
        "None: the group is placed on other Macs. A kubelet that still runs on the Mac registers the Node again.",
        (FAILURE,),
    )
    UNSCHEDULABLE = (
        "Unschedulable",
        "The scheduler cannot bind a pod to the Mac that the plan names.",
        "Free what the message names on that Mac, such as memory or a host port of another pod; `kubectl describe node "
        "NODE` lists its pods.",
        (FAILURE,),
    )
    CRASH_LOOP = (
        "CrashLoop",
        "The container of a runner pod has exited at least five times.",
        "Run the command in the message, `kubectl logs --previous` for the pod; report a bug if the log names no cause.",
        (FAILURE,),
    )
    STOPPED = (
        "Stopped",
        "The group has drained and stopped, although the ModelDeployment still needs it.",
        "None: the group restarts after a back-off.",
        (FAILURE,),
    )
    GAVE_UP = (
        "GaveUp",
        "The runner has used all attempts of spec.bootstrap.attempts and reported no cause. This is not the state "
        "GaveUp of a group, which has used all restarts of spec.recovery.maxRestarts.",
        "Read the log of rank 0: `kubectl logs --tail=-1 -l thunderfleet.io/deployment=NAME,thunderfleet.io/rank=0`.",
        (FAILURE,),
    )

    # Failures that the runner sees: before a rank starts.
    ADDRESS_LOST = (
        "AddressLost",
        "The Mac no longer has an address that the plan uses.",
        "None: the group is placed again with the present addresses. If it recurs, give the Mac a static address or a "
        "DHCP reservation.",
        (On.READY, FAILURE),
    )
    NO_API_KEYS = (
        "NoAPIKeys",
        "The Secret that spec.server.apiKeySecret names has no value, so no client could be authenticated.",
        "Add a value for each client to the Secret, or remove spec.server.apiKeySecret to serve all clients.",
        (FAILURE,),
    )
    DEVICE_MATRIX = (
        "DeviceMatrix",
        "The plan's RDMA devices do not form a mesh or a ring.",
        "None: the group is placed again. If it recurs, report a bug.",
        (FAILURE,),
    )
    PORT_TAKEN = (
        "PortTaken",
        "Another program uses a port of the group.",
        "None: the next attempt or placement uses other ports. If it recurs, move `operator.ports` and "
        "`operator.ringPorts` to a range that no other program uses.",
        (FAILURE,),
    )
    MEMORY_NOT_FREE = (
        "MemoryNotFree",
        "The Mac has less free memory than the placement reserves, because other programs use it.",
        "Close other programs on the Mac, or lower spec.memory.contextTokens, concurrentRequests or cachedTokens.",
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
        "Loaded ranks were killed twice within an hour on this Mac, so the pod starts no rank for a while.",
        "Find the cause in the earlier failures (`kubectl describe md NAME`). The operator replaces the pods of the group "
        "after spec.recovery.backoffLimitSeconds, if restarts are left.",
        (FAILURE,),
    )
    RANK_NOT_STARTED = (
        "RankNotStarted",
        "The operating system cannot start the process of a rank; the message is its error.",
        "Fix the error on the Mac, for example too many processes; if the program is missing, install the programs again in "
        "the folder of the image.",
        (FAILURE,),
    )
    PREFLIGHT_DEADLINE = (
        "PreflightDeadline",
        "The preflight checks of a rank did not finish within a minute.",
        "None: they are repeated. If it recurs, check that the model's disk on that Mac responds.",
        (FAILURE,),
    )

    # Failures that the runner sees: while the group forms.
    INIT_DEADLINE = (
        "InitDeadline",
        "MLX did not connect the ranks within spec.bootstrap.attemptTimeoutSeconds.",
        "None: the next attempt follows. If it recurs, check the cables of the Macs in the message with `kubectl get tbl`.",
        (FAILURE,),
    )
    CHECK_DEADLINE = (
        "CheckDeadline",
        "The test prompt, which every rank of a loaded group must answer alike, did not finish within two minutes.",
        "None: the next attempt follows. If it recurs, stop programs that use the GPU of the Macs in the message.",
        (FAILURE,),
    )
    EXCHANGE_FAILED = (
        "ExchangeFailed",
        "The ranks sent inconsistent connection data for JACCL.",
        "Use the same image on every Mac; if all have it, report a bug.",
        (FAILURE,),
    )
    PEER_REFUSED = (
        "PeerRefused",
        "A peer did not listen in time.",
        "None: the next attempt follows. If it recurs, read the log of the peer's pod.",
        (FAILURE,),
    )
    PEER_UNREACHABLE = (
        "PeerUnreachable",
        "The address of a peer did not answer.",
        "Check with `kubectl get nodes` that the Macs of the group are on, and with `kubectl get tbl` the cables between them.",
        (FAILURE,),
    )
    LOCAL_NETWORK_DENIED = (
        "LocalNetworkDenied",
        "The address of a peer cannot be reached: the peer is off, or macOS denies the runner access to the local network.",
        "Check that the peer is on and the cable is plugged in. If so, allow the runner in System Settings > Privacy & "
        "Security > Local Network.",
        (FAILURE,),
    )
    SOCKET_REFUSED = (
        "SocketRefused",
        "The operating system could not create a socket.",
        "Close programs with many open files on that Mac.",
        (FAILURE,),
    )
    RELAY_REFUSED = (
        "RelayRefused",
        "A runner pod cannot connect to another runner pod in order to relay the traffic of a ring across the LAN.",
        "Check that the Macs reach each other over the LAN: `kubectl get np NODE -o yaml`, status.reachability.",
        (FAILURE,),
    )
    MESH_TOO_LARGE = (
        "MeshTooLarge",
        "A JACCL mesh has at most 8 ranks.",
        "Set spec.transport to JACCLRing or Auto, or spec.nodes.max to 8.",
        (FAILURE,),
    )
    BACKEND_NOT_AVAILABLE = (
        "BackendNotAvailable",
        "The MLX in the image does not support JACCL on this Mac.",
        "Update macOS to 26.3 or newer, or set spec.transport to Ring.",
        (FAILURE,),
    )
    BACKEND_REFUSED = ("BackendRefused", "MLX rejected the configuration of the group.", "Report a bug.", (FAILURE,))
    WRONG_GROUP = ("WrongGroup", "The group that formed is not the planned one.", "Report a bug.", (FAILURE,))
    LINK_CORRUPTS = (
        "LinkCorrupts",
        "In the check before the model is loaded, a rank received a value that differs from the one sent to it.",
        "Replace the cable in the message, or unplug it, wait ten seconds and plug it in again. Until then the group is placed "
        "without it, if that is possible. If the message names no cable, the Mac that received the value is avoided: check "
        "its other cables, or the LAN.",
        (On.VERIFIED, On.READY, FAILURE),
    )
    OUTPUT_WRONG = (
        "OutputWrong",
        "A group did not continue a passage correctly in the check of its answers, although a group with the same weights "
        "has done so for that length before; or its answer to the test prompt differs from an earlier answer with the same "
        "weights.",
        "Check the files of the model and the cables of the group; the message names the wrong token. Then delete the "
        "pods of the group. spec.verify: Quick leaves out this check.",
        (On.VERIFIED, FAILURE),
    )
    KERNEL_WRONG = (
        "KernelWrong",
        "A Mac computes wrong results for products with a matrix of the model.",
        "None at first: other Macs are used, if possible. Reboot the Mac in the message and update macOS; if this recurs, "
        "report a bug.",
        (On.VERIFIED, FAILURE),
    )
    SPLIT_WRONG = (
        "SplitWrong",
        "Macs that share a layer of the model compute different values than one Mac with the whole layer.",
        "Set spec.parallelism to Pipeline, or change spec.nodes.min and spec.nodes.max. Report a bug.",
        (On.VERIFIED, FAILURE),
    )
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
        "Stop other programs that use RDMA on the Mac.",
        (FAILURE,),
    )
    QUEUE_PAIR_INIT = (
        "QueuePairInit",
        "The RDMA device could not initialize a queue pair.",
        "None: the next attempt follows. If it recurs, reboot the Mac.",
        (FAILURE,),
    )
    QUEUE_PAIR_UNANSWERED = (
        "QueuePairUnanswered",
        "Nothing answers over the cable of an RDMA device, so its queue pair does not connect.",
        "Check that the cable leads to the Mac that `kubectl get tbl` shows, and that it is a Thunderbolt 5 cable.",
        (FAILURE,),
    )
    QUEUE_PAIR_REFUSED = (
        "QueuePairRefused",
        "An RDMA device does not connect a queue pair, although its port is active and has an IPv4 address.",
        "Unplug the cable and plug it in again; if it recurs, reboot both Macs.",
        (FAILURE,),
    )
    MEMORY_REGIONS_SPENT = (
        "MemoryRegionsSpent",
        "The RDMA device has no free memory region.",
        "Stop other programs that use RDMA on the Mac.",
        (FAILURE,),
    )

    # Failures that the runner sees: in a group that has formed.
    RDMA_FAILED = (
        "RDMAFailed",
        "The RDMA device aborted a transfer, or the rank crashed during one, as happens when a cable is unplugged.",
        "Check the cable with `kubectl get tbl`; if it recurs, replace the cable.",
        (FAILURE,),
    )
    PEER_LOST = (
        "PeerLost",
        "The connection to another rank broke.",
        "None: the group forms again. The log of the other ranks names the first failure, if any.",
        (FAILURE,),
    )
    RELAY_LOST = (
        "RelayLost",
        "The connection over which two runner pods relay the traffic of a ring across the LAN broke.",
        "None: the group forms again. If it recurs, check the LAN between the Macs in the message.",
        (FAILURE,),
    )
    SUPERVISOR_LOST = (
        "SupervisorLost",
        "The connection between the pod of rank 0 and the pod of another rank broke.",
        "None: the group forms again. If it recurs, check that the Mac is on and that `kubectl get node NODE` shows Ready.",
        (FAILURE,),
    )
    RANK_EXITED = (
        "RankExited",
        "The process of a rank exited with an error that Thunderfleet does not recognize.",
        "Read the log of the pod on that Mac, and report a bug with the message.",
        (FAILURE,),
    )
    RANK_KILLED = (
        "RankKilled",
        "A signal ended the process of a rank; SIGKILL often means that the Mac ran out of memory.",
        "None: the group forms again. If it recurs, stop other programs on the Mac or raise spec.memory.headroomPercent.",
        (FAILURE,),
    )
    RANK_FROZEN = (
        "RankFrozen",
        "The process of a rank runs, but its heartbeat stopped.",
        "None: the rank is restarted. If it recurs, check the load of that Mac.",
        (FAILURE,),
    )
    STALLED = (
        "Stalled",
        "All ranks send heartbeats, but none makes progress.",
        "None: the ranks are restarted. If it recurs, check the cables with `kubectl get tbl`.",
        (FAILURE,),
    )
    GPU_FAILED = (
        "GpuFailed",
        "macOS aborted a GPU command; the message gives the reason.",
        "None: the group forms again. If it recurs, stop other programs that use the GPU on that Mac.",
        (FAILURE,),
    )
    GPU_BUFFERS_SPENT = (
        "GPUBuffersSpent",
        "MLX reached its limit for the number or size of GPU buffers, as happens with many or very long requests.",
        "Lower spec.memory.concurrentRequests or spec.memory.contextTokens.",
        (FAILURE,),
    )
    OUT_OF_MEMORY = (
        "OutOfMemory",
        "The Mac ran out of memory.",
        "Stop other programs on the Mac, or raise spec.memory.headroomPercent so that placements leave more room.",
        (FAILURE,),
    )
    DIVERGED = (
        "Diverged",
        "The ranks computed different tokens or logits while the group served. No wrong token was sent.",
        "None at first: the next attempt makes the checks of spec.verify again, and fails with another reason if they find the "
        "fault. If the message states that they have found nothing, report a bug.",
        (FAILURE,),
    )
    TOKENS_DIFFER = ("TokensDiffer", "The ranks computed different tokens.", "Report a bug.", (FAILURE,))
    UNKNOWN = (
        "Unknown",
        "A rank failed with an error that Thunderfleet does not recognize.",
        "Report a bug with the message and the archive of `thunderfleet support --kubeconfig FILE`.",
        (FAILURE,),
    )

    # Refusals at the rendezvous.
    STRANGER = (
        "Stranger",
        "The rank belongs to another group.",
        "Report a bug with the logs of the group.",
        (REFUSAL,),
    )
    STALE_EPOCH = (
        "StaleEpoch",
        "The rank belongs to another placement of the group.",
        "None: pods of the earlier placement are being deleted.",
        (REFUSAL,),
    )
    NO_SUCH_RANK = (
        "NoSuchRank",
        "The plan has no such rank.",
        "Report a bug with the logs of the group.",
        (REFUSAL,),
    )
    WRONG_NODE = (
        "WrongNode",
        "The plan places the rank on another node.",
        "Report a bug with the logs of the group.",
        (REFUSAL,),
    )
    RANK_TAKEN = (
        "RankTaken",
        "An earlier process of the rank is still connected to rank 0.",
        "None: the rank joins when that connection has ended, within seconds.",
        (REFUSAL,),
    )
    VERSION_DIFFERS = (
        "VersionDiffers",
        "The Macs of the group run different versions of mlx or mlx-lm.",
        "Use the same image on every Mac: install the same versions of mlx and mlx-lm in its folder on the Mac in the message.",
        (REFUSAL,),
    )
    ENVIRONMENT_DIFFERS = (
        "EnvironmentDiffers",
        "An environment variable of MLX differs between Macs of the group: an image sets it, or something that changes pods, "
        "such as a webhook.",
        (
            "Set the variable in the message in spec.runtime.env, which all ranks get, or remove it from the image or the pod "
            "that sets it."
        ),
        (REFUSAL,),
    )
    NOT_LEADER = (
        "NotLeader",
        "The pod is not that of rank 0.",
        "None: only rank 0 accepts other ranks; the response contains the address of rank 0.",
        (REFUSAL,),
    )


WITHOUT_RDMA: Final = frozenset((Reason.RDMA_UNSUPPORTED, Reason.NO_DEVICES, Reason.BELOW_THUNDERBOLT5))
"""Reasons for which a Mac or a cable cannot have RDMA. They are no faults: models run over TCP there."""
