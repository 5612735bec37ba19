"""Which worker runs which file of tests, and in which order."""

# Files that one worker runs, in this order. Two ranks of a real group use two processors, and those of one test spin while
# they wait, so two groups at once take longer than one after the other. End-to-end files of one group share a fleet.
GROUPS = {
    "ranks": (
        "runner/ranks/test_continuation",
        "runner/api/hostile/test_generated_requests",
        "runner/ranks/test_generation_group",
        "runner/api/hostile/test_hostile_bodies",
        "runner/ranks/test_jaccl_group",
        "runner/ranks/test_lockstep_group",
        "runner/rank/test_memory_at_work",
        "runner/api/clients/test_openai_client",
        "runner/ranks/test_relay_group",
        "runner/host/test_stranded_memory",
        "runner/group/test_supervisor_process",
        "runner/ranks/test_unbatched_group",
        "runner/host/test_waiting_process",
    ),
    # test_faults uses the default fleet too and takes longer than these together, so it has a worker and a fleet to itself.
    "default fleet": (
        "e2e/groups/test_answers",
        "e2e/groups/test_bad_input",
        "e2e/security/test_certificates",
        "e2e/groups/test_lifecycle",
        "e2e/groups/test_line",
        "e2e/monitoring/test_monitoring",
        "e2e/commands/test_page",
        "e2e/groups/test_queues",
        "e2e/commands/test_run",
        "e2e/monitoring/test_runbooks",
        "e2e/security/test_trust_matrix",
        "e2e/weights/test_weights_lost",
    ),
    # Each worker would start the cluster without Nodes once more.
    "idle fleet": (
        "e2e/chart/test_api_versions",
        "e2e/chart/test_chart",
        "e2e/chart/test_image",
        "e2e/routing/test_inferencepool",
        "e2e/security/test_joining",
        "e2e/routing/test_outside",
        "e2e/security/test_pods_on_macs",
        "e2e/monitoring/test_podmonitors",
    ),
    "kubelets": (
        "e2e/kubelet/test_disk",
        "e2e/kubelet/test_images",
        "e2e/kubelet/test_kubelet",
        "e2e/kubelet/test_kubelet_pods",
        "e2e/kubelet/test_kubelet_streams",
        "e2e/kubelet/test_old_kubectl",
        "e2e/kubelet/test_kubelet_faults",
    ),
    # Two, because one would take a quarter of the time of all end-to-end tests, and other workers would wait for it.
    "desk": (
        "e2e/placement/test_cables",
        "e2e/commands/test_doctor",
        "e2e/placement/test_relay",
        "e2e/security/test_forgery",
    ),
    # The last one changes the Macs' addresses. Before it, test_weights leaves the values of a hub that has ended.
    "second desk": (
        "e2e/routing/test_router",
        "e2e/routing/test_hpa",
        "e2e/weights/test_weights",
        "e2e/install/test_addresses",
    ),
}
# What takes longest starts first, so that no worker has a long file left when the others are done.
LONGEST = (
    "ranks",
    "agent/measure/test_measure_peers",
    "runner/group/test_supervisor_group",
    "runner/sizing/test_sizing_families",
    "agent/copies/test_copies",
    "runner/hub/test_quantize",
    "runner/api/test_intake_process",
    "operator/placement/test_placement_properties",
    "e2e/install/test_init",
    "default fleet",
    "desk",
    "second desk",
    "e2e/placement/test_measure",
    "e2e/install/test_control_planes",
    "kubelets",
    "e2e/groups/test_faults",
    "e2e/placement/test_placement",
    "e2e/placement/test_discovery",
    "e2e/placement/test_placement_moves",
    "e2e/install/test_localcluster",
    "e2e/security/test_permissions",
    # A worker gets its next group two tests before the end of one, so what follows this file's one test is short.
    "e2e/groups/test_chaos",
    "idle fleet",
)
# Those that start groups of ranks, fleets of agents or members of etcd, that size, quantize or train models, that build or
# unpack images, or that wait for the ends of processes and disks.
SLOW = (
    "ranks",
    "agent/copies/test_copy_controller",
    "agent/copies/test_copies",
    "agent/measure/test_measure_peers",
    "controlplane/peers/test_peers",
    "image/test_tiny_image",
    "kubelet/images/test_images_pods",
    "kubelet/images/test_images_pull",
    "kubelet/pods/test_pods_disk",
    "kubelet/pods/test_pods_leavings",
    "localcluster/test_demo_model",
    "localcluster/test_image",
    "localcluster/test_wheel",
    "runner/api/clients/test_agents",
    "runner/ranks/test_changed_messages",
    "runner/ranks/test_corruptions",
    "runner/api/clients/test_embeddings",
    "runner/net/test_formation",
    "runner/api/test_liveness",
    "runner/api/clients/test_ordinary_requests",
    "runner/api/clients/test_other_dialects",
    "runner/hub/test_quantize",
    "runner/sizing/test_sizing_every",
    "runner/sizing/test_sizing_families",
    "runner/sizing/test_sizing_models",
    "runner/api/hostile/test_strangers",
    "runner/api/clients/test_structured_output",
    "runner/group/test_supervisor_group",
    "runner/ranks/test_verify_levels",
    "support/test_fuzz",
)

_GROUP_OF = {file: group for group, files in GROUPS.items() for file in files}


def file_of(nodeid: str) -> str:
    """The test's file as the names above: its path below ``tests/unit``, or below ``tests``."""
    return nodeid.partition("::")[0].removesuffix(".py").removeprefix("tests/").removeprefix("unit/")


def group_of(nodeid: str) -> str:
    """The files that one worker runs: a group of files, else the test's file."""
    return _GROUP_OF.get(file_of(nodeid), file_of(nodeid))


def turn(nodeid: str) -> tuple[int, int]:
    """When its group starts, and its file's place in the group."""
    group = group_of(nodeid)
    files = GROUPS.get(group, ())
    return LONGEST.index(group) if group in LONGEST else len(LONGEST), files.index(file_of(nodeid)) if files else 0
