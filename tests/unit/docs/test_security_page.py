"""Every statement of docs/security.md has a test that shows it.

A statement is a row of a table, a sentence of a list or a sentence of a paragraph. ``SHOWN_BY`` maps the beginning of each to
its tests: files below ``tests`` with a function, or rows of ``tests/support/trust.py``. When a sentence is new or changed, look
for a test that would fail if it were wrong, or write one, and add it here.
"""

import ast
import re
from pathlib import Path

import pytest

from tests.support.trust import API, PORTS

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/security.md"

ADVICE = ("advice or explanation: there is nothing that a test could show",)
UNPROTECTED = ("says what is not protected: nothing is promised",)

INIT = "e2e/install/test_init.py"
PLANES = "e2e/install/test_control_planes.py"
BACKUP = "unit/controlplane/backup/test_backup_archive.py"
SEALED = "unit/controlplane/peers/test_sealed.py"
PEERS = "unit/controlplane/peers/test_peers.py"
BALANCER = "unit/controlplane/test_balancer.py"
MATRIX = "e2e/security/test_trust_matrix.py"
FORGERY = "unit/operator/rounds/test_forgery.py"
LIVE_FORGERY = "e2e/security/test_forgery.py"
USERS = "unit/kubelet/pods/test_pods_users.py"
LEAVINGS = "unit/kubelet/pods/test_pods_leavings.py"
ON_MACS = "e2e/security/test_pods_on_macs.py"
CERTIFICATES = "unit/operator/rounds/test_serving_certificates.py"
LIVE_CERTIFICATES = "e2e/security/test_certificates.py"
JOINING = "e2e/security/test_joining.py"
LISTENER = "unit/lib/net/test_listener.py"
STRANGERS = "unit/runner/api/hostile/test_strangers.py"
HOSTILE = "unit/runner/api/hostile/test_hostile_bodies.py"
REQUESTS = "unit/runner/api/test_openai_requests.py"
FORMATS = "unit/runner/api/clients/test_structured_output.py"
MODEL = "unit/runner/rank/test_model_files.py"
URIS = "unit/runner/hub/test_uri.py"
ROUTED = "unit/router/test_routing_http.py"
ROUTER = "unit/router/test_router_app.py"
ROUTES = "unit/router/test_decisions.py"
COPIES = "unit/agent/copies/test_copies.py"
PAGE_SERVER = "unit/view/test_page_server.py"
FORWARDED = "unit/kubelet/serving/test_server_portforward.py"
PULLED = "unit/kubelet/images/test_images_pull.py"

SHOWN_BY: dict[str, tuple[str, ...]] = {
    # Images
    "An image of a registry chooses no user": (
        "unit/kubelet/containers/test_pods_inputs.py::test_a_pulled_image_chooses_no_user_and_no_group",
    ),
    "Images of registries ([images.md](images.md)) are verified": (
        f"{PULLED}::test_other_content_than_the_digest_is_refused_and_forgotten",
        "unit/kubelet/images/test_images_unpack.py::test_what_an_image_may_not_have",
        "unit/kubelet/images/test_images_unpack.py::test_bytes_entries_and_ratio_are_bounded",
    ),
    "The files belong to the kubelet's user; all users of": (
        "unit/kubelet/images/test_images_unpack.py::test_what_is_unpacked_belongs_to_the_kubelet_and_is_readable",
    ),
    "`imagePulls.registries` lists the registries": (f"{PULLED}::test_only_allowed_registries_are_asked",),
    "Registries can lead the kubelet only to public addresses": (
        f"{PULLED}::test_a_registry_cannot_lead_to_a_private_address",
        f"{PULLED}::test_no_connection_goes_to_a_name_with_a_private_address",
        f"{PULLED}::test_hosts_in_the_configuration_may_have_private_addresses",
    ),
    "A pull secret is sent to its registry only": (
        f"{PULLED}::test_credentials_are_sent_to_the_registry_and_to_nobody_else",
        "unit/kubelet/images/test_images_pods.py::test_pull_secrets_open_an_image_for_the_pods_that_have_them",
    ),
    # Routers
    "operator: reports of routers |": ("unit/operator/rounds/test_routers.py::test_only_routers_can_report",),
    "**With routers** (": ("unit/chart/test_router_objects.py::test_the_operator_gets_secrets_by_name_and_lists_none",),
    "It keeps digests of the values only.": (
        "unit/operator/rounds/test_routers.py::test_digests_follow_the_secret_within_seconds",
    ),
    "Without routers it may get none but": (
        "unit/chart/test_router_objects.py::test_without_routers_nothing_of_them_exists_and_no_secret_is_read",
    ),
    "A user who may create ModelDeployments in a namespace can make": ADVICE,
    "router | `router.port`": (f"{ROUTED}::test_strangers_learn_nothing", f"{ROUTER}::test_its_certificate_is_read_again"),
    "**Routers** read ModelDeployments": (f"{ROUTER}::test_it_reads_what_it_needs_and_writes_nothing",),
    "**Routers with the live page** (": (
        "unit/chart/test_router_objects.py::test_the_page_adds_the_rights_to_read_the_fleet_and_to_review_tokens",
    ),
    "They read pods of no other namespace": ("unit/router/test_page.py::test_a_viewer_sees_that_a_kubelet_is_silent",),
    "They create TokenReviews": (
        "unit/chart/test_router_objects.py::test_the_page_adds_the_rights_to_read_the_fleet_and_to_review_tokens",
    ),
    "They review only tokens": ("unit/router/test_page.py::test_tokens_that_cannot_be_right_are_not_reviewed",),
    "They read no Secret with API keys": (
        f"{ROUTER}::test_it_reads_what_it_needs_and_writes_nothing",
        f"{ROUTES}::test_keys_need_the_routing_key_of_their_document",
    ),
    "To a gateway they show": (
        f"{ROUTED}::test_gateways_get_the_credential_of_their_group_and_no_key",
        "unit/runner/api/test_gateway_http.py::test_a_router_has_the_credential_of_the_plan",
    ),
    "To the operator they present": (f"{ROUTER}::test_a_wake_that_is_not_possible_is_said",),
    "without a key | use models": (
        f"{ROUTED}::test_strangers_learn_nothing",
        f"{ROUTED}::test_waiting_is_bounded_for_each_key",
        "unit/router/test_hostile_clients.py::test_strangers_who_wait_leave_room_for_holders_of_keys",
        "unit/router/test_hostile_clients.py::test_bodies_of_strangers_leave_room_for_holders_of_keys",
        f"{ROUTER}::test_anonymous_requests_wake_only_if_the_chart_allows_it",
    ),
    "holder of a key | use and wake": (
        f"{ROUTED}::test_holders_of_a_key_see_their_models_only",
        f"{ROUTED}::test_limits_of_a_key_hold_in_each_router",
        f"{ROUTER}::test_a_request_with_a_key_wakes_a_model",
    ),
    "user who may create ModelDeployments in a namespace |": (
        f"{ROUTES}::test_own_namespaces_come_first_and_aliases_never_shadow_names",
        f"{ROUTES}::test_an_alias_of_another_namespace_attracts_no_holder_of_a_key",
    ),
    "user with thousands of ModelDeployments or API keys": (
        f"{ROUTES}::test_a_change_of_one_model_costs_nothing_for_those_of_others",
        f"{ROUTES}::test_no_namespace_crowds_others_out_of_the_list_of_models",
        "unit/operator/rounds/test_routers.py::test_keys_of_a_namespace_are_bounded_and_its_oldest_models_keep_theirs",
    ),
    "user who can read ConfigMaps of the release's namespace |": (
        "unit/crds/test_routing.py::test_a_key_has_another_digest_with_another_routing_key",
    ),
    "user who can read the Secret `thunderfleet-router`": UNPROTECTED,
    "anyone on the LAN | read prompts and answers between": UNPROTECTED,
    "API keys should be random": ADVICE,
    "A request that makes groups fail": (f"{ROUTED}::test_a_request_that_was_there_at_two_failures_is_refused",),
    "Nobody can have requests of others": (f"{ROUTED}::test_who_makes_groups_fail_has_only_own_requests_refused",),
    "The body of a request is checked for its size": (
        f"{ROUTES}::test_bodies_are_bounded_before_they_become_objects",
        f"{ROUTED}::test_odd_requests_kill_nothing_and_always_get_a_response",
    ),
    "What Thunderfleet protects": ADVICE,
    "Report vulnerabilities": ADVICE,
    "[reference/permissions.md]": ("unit/docs/test_reference.py::test_the_reference_is_current",),
    "A test carries them all out": (f"{MATRIX}::test_who_may", f"{MATRIX}::test_who_is_answered"),
    "Another test names": ("unit/docs/test_security_page.py::test_every_statement_has_tests",),
    "A *group* is one replica": ADVICE,
    "The main process of each": ADVICE,
    "`edit` and `view` are the ClusterRoles": ADVICE,
    # Assets
    "models | folders": (f"{USERS}::test_command_lines_and_files_for_everybody_can_be_read",),
    "prompts and answers | memory": ("pod-exec", "pod-exec-b"),
    "API keys of a model |": ("secret-read-b", "gateway-keyed"),
    "key pair of a group |": ("key-read", "secret-list"),
    "the operator's key |": ("operator-key",),
    "tokens of operator and agents |": ("token-operator", "token-agent", "token-agent-other"),
    "certificates of kubelets |": (
        f"{USERS}::test_a_pod_reaches_nothing_of_another_pod",
        "e2e/kubelet/test_kubelet_pods.py::test_a_pod_reads_nothing_of_another_pod",
    ),
    "keys of the cluster's authorities | every Mac": (
        f"{PLANES}::test_a_line_works_once_and_leaves_nothing",
        f"{SEALED}::test_no_other_key_and_no_other_token_reads_it",
    ),
    "backups of a control plane": (
        f"{INIT}::test_what_is_destroyed_is_restored_from_a_backup",
        f"{BACKUP}::test_what_is_written_is_read",
    ),
    "memory and GPUs of the Macs |": ("md-create", "pod-create"),
    # Trust levels
    "cluster administrator |": ("policy-delete", "bind-admin", "operator-key"),
    "a user with `edit` in the namespace of the release |": (
        "operator-key",
        "token-operator",
        "token-agent",
        "be-operator",
        "pod-agent",
    ),
    "a user who may create ConfigMaps": (
        *("plan-delete", "pod-delete", "pod-image", "key-read", "pod-exec", "pod-create"),
        *("secret-read-b", "plan-create-b", "pod-create-b", "pod-delete-b", "pod-evict-b"),
        f"{FORGERY}::test_a_pending_pod_of_others_claims_nothing",
        "unit/operator/groups/test_usage.py::test_pods_of_others_take_memory_and_ports_and_are_no_group",
        "unit/operator/status/test_macs.py::test_a_mac_that_only_a_reboot_helps_is_avoided_until_it_has_booted",
    ),
    "a user who may read a namespace": ("plan-read", "pod-log", "key-read"),
    "a user who may create ModelDeployments |": (
        "md-create",
        "md-create-b",
        "key-read",
        "e2e/groups/test_bad_input.py::test_a_model_that_no_mac_has_is_looked_for_until_it_comes",
    ),
    "holder of an API key": (
        "gateway-keyed",
        "unit/runner/api/test_gateway_http.py::test_the_queue_is_limited_and_in_order",
        "unit/runner/rank/test_mlxlm_contract.py::test_the_prompt_cache_is_bounded_in_tokens_and_can_be_passed_by",
    ),
    "holder of a bootstrap token": (f"{JOINING}::test_a_node_reads_the_secrets_of_its_pods_and_no_others", "csr-other"),
    "holder of a line for a control plane": (f"{PLANES}::test_a_line_works_once_and_leaves_nothing",),
    "root on a Mac with a control plane": ADVICE,
    "root on a Mac, and so": (
        *("key-read", "token-agent", "np-own", "link-own", "node-status", "np-list", "link-list-own"),
        *("np-other", "link-other", "secret-list", "token-agent-other", "node-taint", "np-quarantine", "pod-create"),
        f"{CERTIFICATES}::test_a_mac_that_publishes_the_address_of_another_gets_no_certificate_for_it",
        f"{LIVE_CERTIFICATES}::test_requests_wait_for_the_operator_and_hostile_ones_are_denied",
        "unit/operator/watch/test_cached_objects.py::test_a_compromised_mac_has_as_many_cables_as_a_mac_can_have",
        "unit/operator/watch/test_cached_objects.py::test_links_that_never_count_are_deleted",
        "unit/agent/derive/test_derive.py::test_a_mac_that_copies_uuids_takes_no_cable_from_others",
        "unit/agent/derive/test_derive.py::test_of_claims_to_a_hidden_port_the_first_stays",
        "unit/lib/kube/test_kube_fields.py::test_a_label_that_names_another_mac_counts_for_nothing",
    ),
    "a pod on a Mac |": (
        f"{USERS}::test_a_pod_reaches_nothing_of_another_pod",
        f"{USERS}::test_command_lines_and_files_for_everybody_can_be_read",
        "unit/kubelet/node/test_node_status.py::test_pods_that_share_a_user_are_a_condition_of_the_node",
    ),
    "a user who may create pods |": ("pod-create", "pod-root", "pod-host", "pod-privileged", "pod-first", "pod-priority"),
    "anyone else on the LAN |": (
        "kubelet-pods",
        "agent-peers",
        "agent-metrics",
        "operator-metrics",
        "gateway-open",
        "gateway-metrics",
    ),
    # Ports and sockets
    "While a user runs `thunderfleet ui`,": ADVICE,
    "live page |": (
        f"{PAGE_SERVER}::test_without_a_session_nothing_of_the_fleet_is_sent",
        f"{PAGE_SERVER}::test_a_token_opens_one_session_and_is_then_worth_nothing",
        f"{PAGE_SERVER}::test_pages_of_other_origins_are_refused",
    ),
    "`kubectl port-forward` reaches a TCP port": (f"{FORWARDED}::test_only_the_pods_own_sockets_are_reached",),
    "The kubelet checks this for each connection": (f"{FORWARDED}::test_only_the_pods_own_sockets_are_reached",),
    "For `pods/proxy` and `services/proxy`, which": ("pod-proxy", "pod-proxy-b"),
    "It may list and watch the EndpointSlices": ADVICE,
    "If the chart value `pods.allowed` is": (
        "unit/chart/test_clusters.py::test_pods_on_macs_are_the_operators_if_the_value_says_so",
        "e2e/chart/test_chart.py::test_a_user_with_edit_makes_models_and_no_pod_on_a_mac",
    ),
    "kubelet | 10250": (
        "kubelet-healthz",
        "kubelet-pods",
        "kubelet-metrics",
        "kubelet-logs",
        "kubelet-exec",
        "e2e/kubelet/test_kubelet_streams.py::test_strangers_are_refused",
    ),
    "agent | `agent.port`": ("agent-peers",),
    "agent: copies of models |": (
        f"{COPIES}::test_strangers_and_wrong_names_get_nothing",
        f"{COPIES}::test_what_is_not_in_the_store_is_not_given",
    ),
    "agent: throughput |": (
        "unit/agent/measure/test_measure_peers.py::test_streams_without_the_token_are_closed_and_take_no_slot",
    ),
    "agent: ring |": UNPROTECTED,
    "agent | `agent.metricsPort`": ("agent-metrics", "agent-healthz"),
    "operator | `operator.metricsPort`": ("operator-metrics", "operator-healthz"),
    "runner: control": (
        "control-state",
        f"{STRANGERS}::test_a_stranger_at_every_stage",
        "unit/runner/group/test_supervisor_group.py::test_a_stale_epoch_is_refused_at_both_ends",
    ),
    "runner: gateway": ("gateway-open", "gateway-keyed", "gateway-metrics", "gateway-healthz"),
    "runner: ring": (
        f"{STRANGERS}::test_a_stranger_at_every_stage",
        "unit/runner/net/test_formation.py::test_a_strangers_connection_to_the_rings_port_costs_one_attempt_at_most",
    ),
    "runner: exchange of JACCL": UNPROTECTED,
    "runner: relay of a ring": ("unit/runner/ranks/test_relay_group.py::test_strays_at_the_relays_ports_are_harmless",),
    "A local cluster (`thunderfleet local up`)": ADVICE,
    "API server | its address": ("api-version", "version"),
    "etcd, scheduler, controller manager": (
        "etcd",
        "scheduler",
        "controller-manager",
        "e2e/install/test_localcluster.py::test_another_user_gets_no_answer_from_any_port",
    ),
    "HTTP proxy into": ("proxy", "e2e/install/test_localcluster.py::test_the_proxy_reaches_machines_only_and_needs_its_token"),
    "commands of `thunderfleet`": ("e2e/install/test_localcluster.py::test_another_user_finds_no_secret_in_the_folder",),
    "A Mac that `thunderfleet init` or `join` installed": ADVICE,
    "balancer | 6444": (f"{INIT}::test_strangers_get_nothing_from_the_ports_of_a_control_plane",),
    "The balancer has the rights": (f"{BALANCER}::test_the_balancer_asks_as_the_kubelet",),
    "TLS is between its clients": (f"{BALANCER}::test_large_bodies_pass_and_ends_are_passed_on",),
    "The balancer has at most 1024": (f"{BALANCER}::test_many_connections_do_not_keep_out_another",),
    "A user who opens that many on a Mac": (f"{BALANCER}::test_many_connections_do_not_keep_out_another",),
    "A Mac with a control plane": ADVICE,
    "API server | 6443": (f"{INIT}::test_strangers_get_nothing_from_the_ports_of_a_control_plane",),
    "etcd | 2379": (
        f"{INIT}::test_strangers_get_nothing_from_the_ports_of_a_control_plane",
        f"{PLANES}::test_only_the_others_reach_etcd",
        f"{PEERS}::test_a_stranger_is_no_member_and_no_client",
    ),
    "`thunderfleet restore` takes": ADVICE,
    "It writes nothing outside": (
        f"{BACKUP}::test_a_hostile_file_is_refused",
        f"{BACKUP}::test_a_truncated_file_is_refused_wherever_it_ends",
        f"{BACKUP}::test_a_small_file_that_unpacks_to_much_ends_at_the_bound",
        "unit/controlplane/backup/test_restore.py::test_a_damaged_backup_changes_nothing",
    ),
    "scheduler and controller manager | 10259": (f"{INIT}::test_strangers_get_nothing_from_the_ports_of_a_control_plane",),
    "No program has other listening sockets": (
        f"{MATRIX}::test_nothing_else_listens",
        f"{INIT}::test_strangers_get_nothing_from_the_ports_of_a_control_plane",
    ),
    "Connections between these programs follow no redirects": (
        "unit/lib/net/test_redirects.py::test_no_client_of_a_program_follows_redirects",
        "unit/lib/net/test_redirects.py::test_a_redirect_is_an_error_and_its_target_is_not_asked",
        "unit/view/test_page_server.py::test_a_gateway_cannot_lead_a_chat_to_another_server",
        "unit/cli/test_run.py::test_a_turn_that_fails_is_forgotten",
    ),
    "So a server cannot lead": ("unit/view/test_page_server.py::test_a_gateway_cannot_lead_a_chat_to_another_server",),
    "The servers of kubelet, operator and runner": (
        "unit/kubelet/serving/test_server_streams.py::test_connections_that_send_nothing_are_bounded_and_block_no_client",
        "unit/operator/status/test_health.py::test_held_connections_are_closed_after_their_limit",
        f"{STRANGERS}::test_silent_connections_block_no_other_client",
    ),
    "A connection without a request": (f"{LISTENER}::test_a_connection_without_a_request_is_closed_and_a_busy_one_is_kept",),
    "When the limit is reached": (
        "unit/operator/status/test_health.py::test_a_flood_from_one_address_closes_no_silent_connection_of_another",
    ),
    "All listeners of pods and kubelets": (f"{MATRIX}::test_nothing_else_listens",),
    "[runner/README.md]": ADVICE,
    # Identities
    "**Kubelets** have client certificates": (
        "e2e/kubelet/test_kubelet.py::test_joined_node_has_certificates_and_renews_its_lease",
    ),
    "The chart lets them read ThunderboltLinks": (
        "link-list",
        "unit/kubelet/node/test_node_ports.py::test_a_link_that_only_another_mac_reports_changes_nothing",
    ),
    "The Node authorizer and NodeRestriction": ("node-status-other", "pod-status-other", "pod-delete-other", "secret-list"),
    "**Bootstrap tokens**": (f"{JOINING}::test_bootstrap_tokens_end",),
    "`thunderfleet local token --node NAME`": (
        f"{JOINING}::test_a_bound_token_joins_its_name_and_no_other",
        f"{JOINING}::test_a_bound_token_takes_over_its_node_when_told_to",
    ),
    "Without `--node` a token": (f"{JOINING}::test_an_unbound_token_does_not_take_over_a_node",),
    "The approver of the local cluster": (
        f"{JOINING}::test_a_token_gets_no_more_than_a_node",
        f"{JOINING}::test_a_node_renews_its_own_certificate_and_gets_no_other",
    ),
    "The line that `thunderfleet init` prints": (
        "unit/controlplane/install/test_install_node.py::"
        "test_a_line_for_other_macs_has_a_token_for_every_new_node_that_is_valid_for_a_day",
        "unit/controlplane/test_approver.py::test_an_unbound_token_becomes_a_new_node_only",
        f"{INIT}::test_another_mac_joins",
    ),
    "**Lines for a control plane**": (f"{PLANES}::test_a_line_works_once_and_leaves_nothing",),
    "The first Mac that uses the line": (
        f"{PLANES}::test_a_line_works_once_and_leaves_nothing",
        "unit/controlplane/peers/test_handover.py::test_what_is_offered_goes_with_the_token",
    ),
    "A second Mac is refused": (
        f"{PLANES}::test_a_line_works_once_and_leaves_nothing",
        "unit/controlplane/peers/test_handover.py::test_of_two_macs_one_gets_the_keys",
    ),
    "A reader of Secrets, or": (f"{SEALED}::test_no_other_key_and_no_other_token_reads_it",),
    "**On other clusters**": ADVICE,
    "kubeadm binds the ClusterRole": ADVICE,
    "Where that matters, delete": ADVICE,
    "If `join` has ended, run": ADVICE,
    "**Serving certificates**": (
        "csr-approve-serving",
        f"{LIVE_CERTIFICATES}::test_the_operator_approves_the_certificate_of_a_mac",
    ),
    "A request must come from the Node itself": (
        "csr-serving-other",
        f"{LIVE_CERTIFICATES}::test_requests_wait_for_the_operator_and_hostile_ones_are_denied",
        "unit/lib/test_csr.py::test_what_can_never_be_right_is_denied_at_once",
    ),
    "An address of the API server is denied": (
        f"{LIVE_CERTIFICATES}::test_requests_wait_for_the_operator_and_hostile_ones_are_denied",
        f"{CERTIFICATES}::test_no_mac_gets_a_certificate_for_the_api_server",
    ),
    "Requests of other kubelets, users and signers": (
        "csr-approve",
        f"{CERTIFICATES}::test_nothing_else_is_touched",
    ),
    "A local cluster without the chart": (
        "unit/controlplane/test_approver.py::test_without_the_operator_serving_certificates_are_decided_here",
        "unit/controlplane/test_approver.py::test_with_the_operator_serving_certificates_are_left_to_it",
    ),
    "**Agents** use the service account token": (
        "e2e/chart/test_chart.py::test_a_bound_token_names_its_node",
        "e2e/chart/test_chart.py::test_a_token_without_a_node_writes_nothing",
    ),
    "ValidatingAdmissionPolicies limit each agent": (
        *("np-own", "np-other", "link-own", "link-other", "link-between-others"),
        "e2e/chart/test_chart.py::test_the_receiver_measures",
    ),
    "Connections between agents use": ("agent-peers", "unit/agent/test_reach.py::test_strangers_and_wrong_names_are_refused"),
    "**Runners** have no Kubernetes credentials": (f"{MATRIX}::test_runners_have_no_credentials",),
    "Members of a group authenticate": (
        "control-state",
        "unit/operator/test_parts.py::test_keys_are_derived_and_differ_by_placement",
    ),
    "**The operator** has the permissions": ("e2e/security/test_permissions.py::test_every_right_is_used_and_none_is_missing",),
    "It may read the Leases": (
        "unit/chart/test_objects.py::test_the_operator_approves_for_one_signer_and_reads_few_objects_past_its_cache",
    ),
    "Its key (a Secret in its own namespace)": (
        "unit/operator/test_parts.py::test_the_first_operator_makes_a_key_and_all_others_read_it",
    ),
    # Plans, pods and keys of groups
    "The operator signs its plans": (
        f"{FORGERY}::test_a_forged_plan_claims_nothing",
        f"{FORGERY}::test_pods_that_say_that_they_are_runners_are_left_alone",
    ),
    "writes a plan, or copies one": (
        f"{FORGERY}::test_a_plan_is_valid_for_one_group_and_epoch_only",
        f"{LIVE_FORGERY}::test_forged_plans_of_a_tenant_yield_no_key_plant_no_pod_and_delete_no_secret",
    ),
    "creates an earlier plan": (f"{FORGERY}::test_an_old_plan_does_not_come_back",),
    "creates a pod that requests a whole Mac": (
        f"{LIVE_FORGERY}::test_a_forged_plan_claims_no_memory_and_an_odd_annotation_stops_no_placement",
    ),
    "changes or deletes a plan": (f"{FORGERY}::test_labels_taken_off_a_plan_replace_the_group_and_nothing_else", "plan-delete"),
    "creates objects with names that a group needs": (
        f"{FORGERY}::test_pods_of_somebody_else_with_the_names_of_a_placement_are_avoided",
        f"{FORGERY}::test_a_placement_whose_names_are_all_taken_says_so",
    ),
    "gives a pod annotations that no program can read": (
        f"{LIVE_FORGERY}::test_a_forged_plan_claims_no_memory_and_an_odd_annotation_stops_no_placement",
        "unit/operator/watch/test_generated_objects.py::test_any_pod_is_read",
        "unit/kubelet/pods/test_pods_running.py::test_a_pod_that_was_deleted_by_force_ends_whatever_its_grace_period",
    ),
    "creates thousands of ModelDeployments, or pods": (
        "unit/operator/test_parts.py::test_a_user_with_thousands_of_objects_delays_others_by_one_round",
        "unit/operator/rounds/test_planning.py::test_namespaces_take_turns_at_the_planner",
        "unit/operator/rounds/test_routers.py::test_namespaces_take_turns_in_what_is_published",
        "unit/operator/watch/test_cached_objects.py::test_little_is_kept_of_the_megabyte_of_a_pod",
        "unit/operator/watch/test_cached_objects.py::test_little_is_kept_of_the_metadata_that_a_user_can_add",
        "unit/lib/kube/test_kube_client.py::test_a_page_of_large_objects_is_read_in_parts_and_later_pages_are_whole",
        "unit/operator/watch/test_cached_objects.py::test_kopf_lists_in_pages_and_holds_no_object_for_long",
    ),
    "binds as many pods to a Mac as it may run": (
        "unit/operator/groups/test_usage.py::test_a_mac_that_runs_as_many_pods_as_it_may_gets_no_rank",
        "unit/operator/placement/test_placement_eligibility.py::test_a_mac_that_may_not",
        "unit/kubelet/pods/test_pods_running.py::test_pods_that_are_rejected_delay_no_other",
    ),
    "names a Secret or a ConfigMap of another namespace": (
        "unit/lib/kube/test_kube_client.py::test_a_name_leads_to_no_other_path",
        "e2e/kubelet/test_kubelet_pods.py::test_a_pod_names_no_object_of_another_namespace",
    ),
    "deletes a ModelDeployment with `--cascade=orphan`": (
        "unit/operator/groups/test_usage.py::test_pods_of_others_take_memory_and_ports_and_are_no_group",
    ),
    "names a ModelDeployment like": (f"{LIVE_FORGERY}::test_a_deployment_named_like_a_service",),
    "Two admission policies refuse": (
        "plan-forge",
        "plan-sign",
        "plan-relabel",
        "md-status",
        f"{LIVE_FORGERY}::test_look_alikes_are_refused",
    ),
    "`operator.reserveObjects: false` omits": (
        f"{LIVE_FORGERY}::test_a_forged_plan_claims_no_memory_and_an_odd_annotation_stops_no_placement",
    ),
    "Labeled objects then use memory": (f"{FORGERY}::test_labelled_config_maps_of_a_megabyte_take_little_memory",),
    "Do not grant permission": ADVICE,
    "The operator's key is the Secret": ("operator-key",),
    "A reader of it can forge": ("unit/operator/test_parts.py::test_keys_are_derived_and_differ_by_placement",),
    "[operate.md](operate.md#the-operators-key)": (
        f"{FORGERY}::test_a_rotated_key_changes_nothing_until_the_next_epoch",
        f"{LIVE_FORGERY}::test_a_lost_key_stops_no_group",
    ),
    # Pods on Macs
    "Containers on Macs are processes": ADVICE,
    "The kubelet gives each pod its own user": ("e2e/groups/test_line.py::test_runners_and_agents_have_users_of_their_own",),
    "No other pod's user can enter": (f"{USERS}::test_a_pod_reaches_nothing_of_another_pod",),
    "When the last pod with a `runAsUser` has ended": (
        f"{LEAVINGS}::test_files_of_a_chosen_user_end_with_its_pod",
        f"{LEAVINGS}::test_the_last_pod_with_a_user_deletes_what_all_have_left",
        f"{LEAVINGS}::test_files_that_did_not_change_while_a_pod_had_the_user_stay",
    ),
    "Nothing of ids below 1000": (f"{LEAVINGS}::test_files_that_may_not_be_the_pods_stay",),
    "If the id is an account of the Mac": (f"{LEAVINGS}::test_files_that_may_not_be_the_pods_stay",),
    "`runAsUser`, `runAsGroup`": (
        f"{USERS}::test_a_spec_cannot_name_the_user_of_another_pod",
        "unit/kubelet/pods/test_pods_decide.py::test_two_namespaces_do_not_share_a_user",
    ),
    "When a pod has ended, the kubelet kills": (
        f"{USERS}::test_a_user_is_free_when_its_processes_are_gone",
        f"{USERS}::test_a_pod_that_has_ended_keeps_its_log_and_message_but_no_files",
        f"{USERS}::test_a_pod_leaves_nothing_to_the_next_one_with_its_user",
    ),
    "Only then does it reuse the user": (f"{USERS}::test_no_user_is_left_for_a_pod_until_one_ends",),
    "If a folder of the user contains files of others": (
        f"{USERS}::test_only_what_the_user_owns_is_deleted_outside_of_its_pod",
    ),
    "A kubelet that is not root": (
        "unit/kubelet/node/test_node_status.py::test_pods_that_share_a_user_are_a_condition_of_the_node",
    ),
    "`kubectl describe node` shows": ("e2e/kubelet/test_kubelet_pods.py::test_the_node_says_whether_pods_share_a_user",),
    "Namespaces that run models": ADVICE,
    "The policy `thunderfleet-mac-pods`": (f"{ON_MACS}::test_every_way_to_ask_for_a_mac_counts",),
    "The kubelet of a Mac runs no other pods": (
        "e2e/kubelet/test_kubelet_pods.py::test_pods_that_cannot_run_here_wait_and_say_why",
    ),
    "created by the operator's service account": (
        f"{ON_MACS}::test_the_operators_pods_have_host_folders_and_are_not_root",
        "pod-root",
        "pod-host",
        "pod-first",
    ),
    "of the service account `thunderfleet-agent`": (
        f"{ON_MACS}::test_agents_and_privileged_namespaces_are_exempt",
        "pod-agent",
    ),
    "in a namespace of `pods.privilegedNamespaces`": (f"{ON_MACS}::test_agents_and_privileged_namespaces_are_exempt",),
    "any other, with `pods.allowed: Anyone`": (
        f"{ON_MACS}::test_a_tenant_gets_no_rights_on_macs",
        "pod-root",
        "pod-user",
        "pod-host",
        "pod-first",
    ),
    "The priority classes `system-cluster-critical`": ("pod-priority", f"{ON_MACS}::test_a_tenant_gets_no_rights_on_macs"),
    "Processes of containers with the capability `SYS_NICE`": (
        "unit/kubelet/pods/test_pods_running.py::test_only_processes_of_the_container_come_before_other_programs",
    ),
    "The image of a container that has it": (
        "pod-image",
        f"{ON_MACS}::test_only_the_operators_pods_come_before_other_programs",
    ),
    "The operator's pods have it": (
        "pod-first",
        "unit/operator/groups/test_manifests.py::test_the_pod_of_a_rank",
        "unit/runner/group/test_supervisor_group.py::test_a_group_comes_before_other_programs_until_it_is_ready",
        "unit/runner/group/test_supervisor_group.py::test_a_group_comes_before_other_programs_for_a_limited_time",
    ),
    "The process that checks requests loses it": (
        "unit/runner/api/test_intake_process.py::test_a_process_that_works_for_clients_is_equal_to_other_programs",
    ),
    "Earlier, requests are answered without being read": (
        "unit/runner/api/test_gateway_http.py::test_until_ready_no_request_is_read_and_none_starts_a_process",
    ),
    "Ids below 1000": ADVICE,
    "Accounts of a directory service": ADVICE,
    "A container sees the files of the Mac": ADVICE,
    "Its volumes are below": (
        "unit/kubelet/pods/test_pods_running.py::test_a_new_pod_gets_the_object_that_is_not_an_earlier_one_of_its_name",
    ),
    "Model folders must be readable": ADVICE,
    "So every pod on a Mac": (f"{USERS}::test_command_lines_and_files_for_everybody_can_be_read",),
    # Requests and models
    "The values of that Secret are read": (
        "unit/runner/group/test_supervisor_cli.py::test_every_value_of_the_secret_is_a_key",
    ),
    "To revoke an API key": ADVICE,
    "A Mac that boots starts pods of groups before": (
        "unit/kubelet/containers/test_pods_volumes.py::test_a_pod_may_start_at_boot_with_its_volumes_as_they_were",
        "unit/kubelet/containers/test_pods_volumes.py::test_a_pod_that_was_deleted_while_the_mac_was_off_ends_with_the_first_list",
        "e2e/groups/test_faults.py::test_macs_lose_power_and_serve_before_the_api_server_is_back",
    ),
    "A group whose `spec.server.apiKeySecret`": (
        "unit/runner/group/test_supervisor_cli.py::test_a_secret_without_a_key_opens_nothing",
        "unit/runner/group/test_supervisor_cli.py::test_a_secret_without_a_key_stops_the_supervisor",
    ),
    "The gateway builds a new request": (
        "unit/runner/api/test_openai_requests.py::test_what_would_end_a_rank_or_change_the_answer_is_refused",
        "unit/runner/api/test_gateway_http.py::test_large_bodies_share_their_memory_and_small_ones_pass",
        "unit/lib/test_jsonbounds.py",
    ),
    "Unknown fields never reach one": (f"{REQUESTS}::test_nulls_and_bookkeeping_are_dropped_and_what_has_no_effect_is_named",),
    "Arguments for a chat template are bounded": (
        f"{REQUESTS}::test_what_would_end_a_rank_or_change_the_answer_is_refused",
        "unit/runner/rank/test_mlxlm_contract.py::test_requests_cannot_set_what_the_renderer_of_chats_takes_from_the_server",
    ),
    "Schemas and grammars are compiled": (
        f"{FORMATS}::test_tensor_ranks_answer_in_formats_and_refuse_those_that_cannot_be_used",
    ),
    "References in schemas are not fetched": (
        f"{FORMATS}::test_tensor_ranks_answer_in_formats_and_refuse_those_that_cannot_be_used",
    ),
    "On a rank, llguidance bounds": (f"{FORMATS}::test_tensor_ranks_answer_in_formats_and_refuse_those_that_cannot_be_used",),
    "Requests travel to the ranks": ("unit/runner/rank/test_mlxlm_contract.py::test_work_survives_its_way_through_json",),
    "Bodies are parsed, rendered": (f"{HOSTILE}::test_bodies_of_the_largest_size_stop_nothing",),
    "One that needs more fails": (f"{HOSTILE}::test_a_chat_or_text_that_takes_too_much_fails_alone",),
    "Ranks read local files only": (
        f"{MODEL}::test_hubs_are_off",
        f"{REQUESTS}::test_what_would_end_a_rank_or_change_the_answer_is_refused",
    ),
    "Code that comes with a model": (f"{MODEL}::test_code_in_a_model_folder_is_not_run",),
    "Its chat template is run": (
        f"{HOSTILE}::test_a_chat_or_text_that_takes_too_much_fails_alone",
        f"{MODEL}::test_a_template_reaches_no_internals",
    ),
    "Weights are read from safetensors": (f"{MODEL}::test_pickled_weights_are_not_read",),
    "For a model at a URI, Macs contact only": (
        f"{URIS}::test_a_host_that_is_not_listed_is_not_even_resolved",
        f"{URIS}::test_a_certificate_of_an_unknown_authority_or_for_another_name_is_refused",
        "unit/operator/weights/test_uris.py::test_no_pod_asks_a_host_that_is_not_allowed",
        "e2e/groups/test_bad_input.py::test_a_host_that_the_chart_does_not_allow_is_named_with_the_value_to_set",
    ),
    "Redirects are followed to these hosts only": (f"{URIS}::test_redirects_that_are_not_followed",),
    "Every address of such a host is checked": (
        f"{URIS}::test_one_address_that_may_not_be_asked_is_enough",
        f"{URIS}::test_a_name_that_changes_after_the_check_leads_nowhere_else",
    ),
    "Loopback and link-local addresses are never contacted": (
        f"{URIS}::test_which_addresses_may_be_asked",
        f"{URIS}::test_private_addresses_only_of_hosts_that_may_have_them",
    ),
    "Each file at a URI is verified": (
        f"{URIS}::test_wrong_bytes_are_refused_and_fetched_again",
        f"{URIS}::test_another_list_than_the_specs_is_not_used_and_its_hash_is_named",
        "unit/lib/modelstore/test_modelstore_sums.py::test_others_are_refused",
    ),
    "A ModelDeployment gets the files only after": (
        "unit/operator/weights/test_uris.py::test_the_files_of_another_namespace_are_not_used",
    ),
    "These rules apply to users": ADVICE,
    "A user who may create pods on Macs can send": UNPROTECTED,
    # What is not protected
    "Gateways speak plain HTTP": UNPROTECTED,
    "Put a TLS proxy": ADVICE,
    "Data on a Thunderbolt cable": UNPROTECTED,
    "On a LAN the supervisors relay": ("e2e/placement/test_relay.py::test_a_rings_ports_are_not_to_be_reached_from_the_lan",),
    "A user who may create pods can give": UNPROTECTED,
    "`thunderfleet-mac-pods` refuses those": ("pod-priority",),
    "Limit the use of PriorityClasses": ADVICE,
    "Processes of a container that sets `runAsUser` outlive": UNPROTECTED,
    "They belong to the next pod with that user id": UNPROTECTED,
    "Leave out `runAsUser`": ADVICE,
    "A user who may run commands in pods of a group": UNPROTECTED,
    "Named POSIX shared memory": UNPROTECTED,
    "Probes and hooks of a pod send": UNPROTECTED,
    "Pods on a Mac are processes": UNPROTECTED,
    "There is no isolation by namespaces": (f"{USERS}::test_command_lines_and_files_for_everybody_can_be_read",),
}


def statements(text: str) -> list[str]:
    """The rows and sentences of a page, without headings."""
    found: list[str] = []
    for block in re.split(r"\n\s*\n|\n(?=- )", re.sub(r"^#.*$", "", text, flags=re.MULTILINE)):
        lines = block.strip().splitlines()
        if lines and lines[0].startswith("|"):
            found += [line.strip("| ") for line in lines[2:]]
        elif lines:
            prose = " ".join(line.strip() for line in lines).removeprefix("- ")
            found += re.split(r"(?<=\.)\s+|(?<=:)\s+(?=[A-Z`*\[])", prose)
    return found


def rows() -> set[str]:
    """The ids of all rows of the tables of permissions."""
    return {action.id for table in API.values() for action in table} | {knock.id for table in PORTS.values() for knock in table}


def functions_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_rows_and_sentences_are_statements() -> None:
    text = "# Title\n\nOne `is`. Two\nare.\n\n- **A** has. `b` too.\n- C.\n\n| x | y |\n|---|---|\n| 1. A | 2 |\n"
    assert statements(text) == ["One `is`.", "Two are.", "**A** has.", "`b` too.", "C.", "1. A | 2"]


def test_every_statement_has_tests() -> None:
    said = statements(PAGE.read_text(encoding="utf-8"))
    unshown = [text for text in said if not any(text.startswith(beginning) for beginning in SHOWN_BY)]
    assert unshown == [], "no test is named for these statements; add them to SHOWN_BY"
    stale = [beginning for beginning in SHOWN_BY if sum(text.startswith(beginning) for text in said) != 1]
    assert stale == [], "these beginnings are of no statement, or of several"


@pytest.mark.parametrize("beginning", [key for key, tests in SHOWN_BY.items() if tests not in (ADVICE, UNPROTECTED)])
def test_the_tests_exist(beginning: str) -> None:
    for test in SHOWN_BY[beginning]:
        file, _, name = test.partition("::")
        if file.endswith(".py"):
            assert not name or name in functions_of(file), test
        else:
            assert test in rows(), f"no row of tests/support/trust.py has the id {test}"
