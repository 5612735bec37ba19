"""Each alert of the chart fires for its problem, names its object, and is quiet otherwise, as a real promtool evaluates it."""

import importlib.util
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from thunderfleet_controlplane.assets import CONTROL_PLANE, MONITORING
from thunderfleet_crds.reasons import Reason
from thunderfleet_localcluster.programs import find_programs

from tests.support import yamltext

Json = dict[str, Any]

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "thunderfleet"
TROUBLESHOOT = ROOT / "docs" / "troubleshoot.md"
RUNBOOK = "https://docs.example/troubleshoot.md"
COMMAND_SECONDS = 240.0
OBJECT = 'namespace="team",name="qwen"'
OTHER = 'namespace="team",name="other"'
FAILED = "thunderfleet_modeldeployment_group_last_failure_timestamp_seconds"
PLANE_EXPIRES = "thunderfleet_control_plane_certificate_expiry_seconds"
PLANE_SILENT = "thunderfleet_operator_control_plane_silent"
CLOCK = "thunderfleet_operator_clock_wrong_seconds"
INTAKE_ENDS = "thunderfleet_runner_intake_ends_total"
LATE = "thunderfleet_kubelet_lease_late_seconds"
READY = 'thunderfleet_mac_ready{node="m1"}'
COMPONENT_UP = "thunderfleet_control_plane_component_up"
UNRENEWED = "thunderfleet_operator_component_unrenewed_seconds"
LINK = "thunderfleet_thunderboltlink_condition"
GROUP = f'{OBJECT},group="0"'
RUNNER = 'instance="10.0.0.1:20000",namespace="team",deployment="qwen",group="0",rank="0"'
PRESSURES = {"DiskPressure": 1, "MemoryPressure": 1, "PIDPressure": 0}
OF_THE_CLUSTER = {"ThunderfleetControlPlaneSilent", "ThunderfleetOperatorWithoutLeader", "ThunderfleetBackupTooOld"}
# Alert: series with the problem, and without it. They are evaluated after three hours; times in values are seconds since the
# Unix epoch, at which promtool starts.
CASES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "ThunderfleetModelDeploymentNotReady": (
        {f'thunderfleet_modeldeployment_not_ready_timestamp_seconds{{{OBJECT},instance="a"}}': "600x180"},
        {f'thunderfleet_modeldeployment_not_ready_timestamp_seconds{{{OBJECT},instance="a"}}': "9600x180"},
    ),
    "ThunderfleetGroupGaveUp": (
        {f'thunderfleet_modeldeployment_group_state{{{GROUP},state="GaveUp"}}': "1x180"},
        {f'thunderfleet_modeldeployment_group_state{{{GROUP},state="Ready"}}': "1x180"},
    ),
    "ThunderfleetGroupCrashLooping": (
        {
            f'{FAILED}{{{GROUP},reason="PeerLost",node="m1",link=""}}': "10700x180",
            f"thunderfleet_modeldeployment_group_restarts{{{GROUP}}}": "4x180",
        },
        {
            f'{FAILED}{{{GROUP},reason="PeerLost",node="m1",link=""}}': "10700x180",
            f"thunderfleet_modeldeployment_group_restarts{{{GROUP}}}": "1x180",
        },
    ),
    "ThunderfleetModelDeploymentUnplaceable": (
        {f'thunderfleet_modeldeployment_condition{{{OBJECT},type="Placed",reason="NoRoom"}}': "0x180"},
        {
            f'thunderfleet_modeldeployment_condition{{{OBJECT},type="Placed",reason="Placed"}}': "1x180",
            f'thunderfleet_modeldeployment_condition{{{OTHER},type="Placed",reason="ModelNotResolved"}}': "0x180",
            f'thunderfleet_modeldeployment_condition{{{OTHER},type="ModelResolved",reason="Quantizing"}}': "0x180",
        },
    ),
    "ThunderfleetBenchmarkSlower": (
        {f"thunderfleet_modeldeployment_benchmark_tokens_per_second{{{OBJECT}}}": "20x30 17x150"},
        {f"thunderfleet_modeldeployment_benchmark_tokens_per_second{{{OBJECT}}}": "20x30 18.5x150"},
    ),
    "ThunderfleetMacQuarantined": (
        {'thunderfleet_mac_condition{node="studio-1",type="Quarantined",reason="StackHung"}': "1x180"},
        {'thunderfleet_mac_condition{node="studio-1",type="Quarantined",reason="Rebooted"}': "0x180"},
    ),
    "ThunderfleetMacNotReady": (
        {'thunderfleet_mac_ready{node="studio-1",instance="a"}': "0x180"},
        {'thunderfleet_mac_ready{node="studio-1",instance="a"}': "1x180"},
    ),
    "ThunderfleetKubeletLate": (
        # Each renewal comes some seconds before the Node would become NotReady.
        {f'{LATE}{{node="m1",instance="m1:10250"}}': "0x90 0 21 4 0 19" + " 0 21 4 0 19" * 17, READY: "1x180"},
        {
            # Late once; while the control plane did not answer; on a Mac that is off.
            f'{LATE}{{node="m1",instance="m1:10250"}}': "0x172 300 0x7",
            f'{LATE}{{node="m2",instance="m2:10250"}}': "0x160 60 120 180 240 300 360 420 480 540 600 0x9",
            f'{PLANE_SILENT}{{instance="a",part="API server"}}': "0x160 1x9 0x9",
            f'{LATE}{{node="m3",instance="m3:10250"}}': "0x90 0+60x90",
            'thunderfleet_mac_ready{node="m3"}': "1x90 0x90",
            READY: "1x180",
        },
    ),
    "ThunderfleetKubeletDescriptorsExhausted": (
        {'thunderfleet_mac_pressure{node="m1",type="DescriptorsExhausted"}': "1x180"},
        {
            'thunderfleet_mac_pressure{node="m1",type="DescriptorsExhausted"}': "0x180",
            'thunderfleet_mac_pressure{node="m1",type="PIDPressure"}': "1x180",
        },
    ),
    "ThunderfleetMacClockWrong": (
        {'thunderfleet_mac_condition{node="studio-1",type="ClockSynchronized",reason="ClockWrong"}': "0x180"},
        {
            'thunderfleet_mac_condition{node="studio-1",type="ClockSynchronized",reason="Synchronized"}': "1x180",
            'thunderfleet_mac_condition{node="studio-2",type="ClockSynchronized",reason="NotObserved"}': "-1x180",
        },
    ),
    "ThunderfleetRDMAHung": (
        {'thunderfleet_mac_condition{node="studio-1",type="RDMAReady",reason="StackHung"}': "0x180"},
        {'thunderfleet_mac_condition{node="studio-1",type="RDMAReady",reason="RDMADisabled"}': "0x180"},
    ),
    "ThunderfleetCableDown": (
        {'thunderfleet_thunderboltlink_condition{name="a.tb1--b.tb1",type="Connected",reason="Unplugged"}': "0x180"},
        {'thunderfleet_thunderboltlink_condition{name="a.tb1--b.tb1",type="Connected",reason="Connected"}': "1x180"},
    ),
    "ThunderfleetCableGone": (
        {
            f'{LINK}{{name="a.tb1--b.lan.tb2",type="Connected",reason="Connected"}}': "1x60 _x120",
            f'{LINK}{{name="a.tb1--b.lan.tb2",type="Connected",reason="Unplugged"}}': "_x60 0 _x119",
            'thunderfleet_mac_ready{node="a"}': "1x180",
            'thunderfleet_mac_ready{node="b.lan"}': "1x180",
        },
        {
            # A cable that is back, one of a Mac that is off, one of a Node that was deleted, and one that never connected.
            'thunderfleet_thunderboltlink_condition{name="a.tb1--b.tb2",type="Connected",reason="Connected"}': "1x60 _x90 1x30",
            'thunderfleet_thunderboltlink_condition{name="a.tb2--off.tb2",type="Connected",reason="Connected"}': "1x60 _x120",
            'thunderfleet_thunderboltlink_condition{name="a.tb3--gone.tb2",type="Connected",reason="Connected"}': "1x60 _x120",
            'thunderfleet_thunderboltlink_condition{name="a.tb4--b.tb4",type="Connected",reason="OneEnd"}': "0x60 _x120",
            'thunderfleet_mac_ready{node="a"}': "1x180",
            'thunderfleet_mac_ready{node="b"}': "1x180",
            'thunderfleet_mac_ready{node="off"}': "1x60 0x120",
            'thunderfleet_mac_ready{node="gone"}': "1x60 _x120",
        },
    ),
    "ThunderfleetCableDegraded": (
        {'thunderfleet_thunderboltlink_condition{name="a.tb1--b.tb1",type="Connected",reason="Degraded"}': "1x180"},
        {'thunderfleet_thunderboltlink_condition{name="a.tb1--b.tb1",type="Connected",reason="Connected"}': "1x180"},
    ),
    "ThunderfleetCableFlapping": (
        {'thunderfleet_thunderboltlink_flapping{name="a.tb1--b.tb1"}': "1x180"},
        {'thunderfleet_thunderboltlink_flapping{name="a.tb1--b.tb1"}': "0x180"},
    ),
    "ThunderfleetControlPlaneSilent": (
        {
            f'{PLANE_SILENT}{{instance="a",part="etcd"}}': "0x20 1x160",
            f'{PLANE_SILENT}{{instance="b",part="etcd"}}': "0x20 1x160",
        },
        {
            f'{PLANE_SILENT}{{instance="a",part="API server"}}': "1x180",
            f'{PLANE_SILENT}{{instance="b",part="API server"}}': "0x180",
        },
    ),
    "ThunderfleetControlPlaneComponentDown": (
        {f'{UNRENEWED}{{instance="a",component="kube-scheduler"}}': "0x60 26+60x120"},
        {
            # Another replica led before, and a component was slow for a moment.
            f'{UNRENEWED}{{instance="b",component="kube-scheduler"}}': "0x60 30 90 _x110",
            f'{UNRENEWED}{{instance="a",component="kube-scheduler"}}': "_x70 5x110",
            f'{UNRENEWED}{{instance="a",component="kube-controller-manager"}}': "_x70 5x108 30 90",
        },
    ),
    "ThunderfleetControlPlaneProgramDown": (
        {f'{COMPONENT_UP}{{node="m1",component="kube-scheduler"}}': "1x20 0x160"},
        {f'{COMPONENT_UP}{{node="m1",component="kube-scheduler"}}': "1x178 0 0"},
    ),
    "ThunderfleetOperatorWithoutLeader": (
        {'thunderfleet_operator_leading{instance="a"}': "1x20 0x160", 'thunderfleet_operator_leading{instance="b"}': "0x180"},
        {'thunderfleet_operator_leading{instance="a"}': "1x180", 'thunderfleet_operator_leading{instance="b"}': "0x180"},
    ),
    "ThunderfleetOperatorClockWrong": (
        {f'{CLOCK}{{instance="a"}}': "-3600x180", f'{CLOCK}{{instance="b"}}': "0x180"},
        {f'{CLOCK}{{instance="a"}}': "0x180", f'{CLOCK}{{instance="b"}}': "9x120 0x60"},
    ),
    "ThunderfleetReconcileErrors": (
        {'thunderfleet_operator_reconcile_errors_total{kind="modeldeployments"}': "0+1x180"},
        {'thunderfleet_operator_reconcile_errors_total{kind="modeldeployments"}': "7x180"},
    ),
    "ThunderfleetAgentMissing": (
        {
            'thunderfleet_mac_ready{node="m1"}': "1x180",
            'thunderfleet_mac_ready{node="m2"}': "1x180",
            'thunderfleet_agent_info{node="m1",job="pods"}': "1x180",
            'thunderfleet_agent_info{node="m1",job="monitors"}': "1x180",
        },
        {
            'thunderfleet_mac_ready{node="m1"}': "1x180",
            'thunderfleet_mac_ready{node="m2"}': "0x180",
            'thunderfleet_agent_info{node="m1"}': "1x180",
        },
    ),
    "ThunderfleetMacDiskFull": (
        {'thunderfleet_mac_disk_free_bytes{node="m1"}': "40x180", 'thunderfleet_mac_disk_size_bytes{node="m1"}': "1000x180"},
        {'thunderfleet_mac_disk_free_bytes{node="m1"}': "60x180", 'thunderfleet_mac_disk_size_bytes{node="m1"}': "1000x180"},
    ),
    "ThunderfleetDescriptorsExhausted": (
        {'thunderfleet_process_free_descriptors{instance="m1:9440",program="agent"}': "4000x60 3x120"},
        {
            'thunderfleet_process_free_descriptors{instance="m1:9440",program="agent"}': "4000x180",
            'thunderfleet_process_free_descriptors{instance="m1:10250",program="kubelet"}': "3x180",
        },
    ),
    "ThunderfleetTargetDown": (
        {
            'thunderfleet_build_info{instance="m1:9440",job="pods",program="agent",version="1"}': "1x60",
            'thunderfleet_build_info{instance="m1:9440",job="monitors",program="agent",version="1"}': "1x60",
            'up{instance="m1:9440",job="pods"}': "1x60 0x120",
            'up{instance="m1:9440",job="monitors"}': "1x60 0x120",
        },
        {
            # A pod that was deleted, and a target of another project.
            'thunderfleet_build_info{instance="m1:9440",job="pods",program="agent",version="1"}': "1x60",
            'up{instance="m1:9440",job="pods"}': "1x60",
            'up{instance="other:80",job="pods"}': "0x180",
        },
    ),
    "ThunderfleetAgentSilent": (
        {'thunderfleet_agent_published_timestamp_seconds{instance="m1:9440"}': "60x180"},
        {'thunderfleet_agent_published_timestamp_seconds{instance="m1:9440"}': "0+60x180"},
    ),
    "ThunderfleetRequestErrors": (
        {
            f'thunderfleet_runner_requests_total{{{RUNNER},code="200"}}': "0+60x180",
            f'thunderfleet_runner_requests_total{{{RUNNER},code="503"}}': "0+30x180",
        },
        {
            f'thunderfleet_runner_requests_total{{{RUNNER},code="200"}}': "0+60x180",
            f'thunderfleet_runner_requests_total{{{RUNNER},code="503"}}': "0+1x180",
        },
    ),
    "ThunderfleetIntakeEnds": (
        {f'{INTAKE_ENDS}{{{RUNNER},cause="other"}}': "0x172 1+1x7", f'{INTAKE_ENDS}{{{RUNNER},cause="cpu"}}': "0x180"},
        {f'{INTAKE_ENDS}{{{RUNNER},cause="other"}}': "0x172 1x7", f'{INTAKE_ENDS}{{{RUNNER},cause="cpu"}}': "0+1x180"},
    ),
    "ThunderfleetRequestsWait": (
        {f"thunderfleet_runner_queue_depth{{{RUNNER}}}": "33x180"},
        {f"thunderfleet_runner_queue_depth{{{RUNNER}}}": "32x180"},
    ),
    "ThunderfleetFirstTokenSlow": (
        {
            f'thunderfleet_runner_time_to_first_token_seconds_bucket{{{RUNNER},le="60"}}': "0+1x180",
            f'thunderfleet_runner_time_to_first_token_seconds_bucket{{{RUNNER},le="300"}}': "0+2x180",
            f'thunderfleet_runner_time_to_first_token_seconds_bucket{{{RUNNER},le="+Inf"}}': "0+2x180",
        },
        {
            f'thunderfleet_runner_time_to_first_token_seconds_bucket{{{RUNNER},le="60"}}': "0+2x180",
            f'thunderfleet_runner_time_to_first_token_seconds_bucket{{{RUNNER},le="300"}}': "0+2x180",
            f'thunderfleet_runner_time_to_first_token_seconds_bucket{{{RUNNER},le="+Inf"}}': "0+2x180",
        },
    ),
    "ThunderfleetBackupTooOld": (
        {'thunderfleet_control_plane_backup_timestamp_seconds{node="studio-1"}': "-700000x180"},
        {
            'thunderfleet_control_plane_backup_timestamp_seconds{node="studio-1"}': "-700000x180",
            'thunderfleet_control_plane_backup_timestamp_seconds{node="studio-2"}': "600x180",
        },
    ),
    "ThunderfleetControlPlaneCertificateEnds": (
        {
            # Two certificates of one Mac: one alert.
            f'{PLANE_EXPIRES}{{node="m1",name="apiserver"}}': "2500000x180",
            f'{PLANE_EXPIRES}{{node="m1",name="etcd"}}': "2500001x180",
            f'{PLANE_EXPIRES}{{node="m1",name="ca"}}': "300000000x180",
        },
        {f'{PLANE_EXPIRES}{{node="m1",name="apiserver"}}': "2700000x180"},
    ),
    "ThunderfleetKubeletCertificateEnds": (
        {'thunderfleet_kubelet_certificate_expiry_seconds{instance="m1:10250",name="serving"}': "20000x180"},
        {'thunderfleet_kubelet_certificate_expiry_seconds{instance="m1:10250",name="serving"}': "200000x180"},
    ),
}


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart's alerts as a rule file of Prometheus."""
    helm = find_programs(lambda event: None, CONTROL_PLANE) / "helm"
    values = ["--set", f"alerts.enabled=true,alerts.runbookURL={RUNBOOK}", "-s", "templates/alerts.yaml"]
    done = run(str(helm), "template", "x", str(CHART), *values)
    path: Path = tmp_path_factory.mktemp("rules") / "rules.yaml"
    path.write_text(yamltext.dump(yamltext.load(done)["spec"]))
    return path


def run(*command: str) -> str:
    """Runs a command that must find nothing wrong."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def of(rules: Path) -> dict[str, Json]:
    """The alerts by name."""
    return {rule["alert"]: rule for rule in yamltext.load(rules.read_text())["groups"][0]["rules"]}


def test_every_alert_has_a_case_and_a_runbook_that_exists(rules: Path) -> None:
    headings = re.findall(r"^## (.+)$", TROUBLESHOOT.read_text(), re.MULTILINE)
    anchors = {f"{RUNBOOK}#{re.sub(r'[^a-z0-9 -]', '', heading.lower()).replace(' ', '-')}" for heading in headings}
    assert CASES.keys() == of(rules).keys()
    assert {alert["annotations"]["runbook_url"] for alert in of(rules).values()} <= anchors


def test_alerts_and_their_cases_name_reasons_that_exist(rules: Path) -> None:
    texts = [alert["expr"] for alert in of(rules).values()] + [one for case in CASES.values() for part in case for one in part]
    named = {reason for text in texts for found in re.findall(r'\breason=~?"([\w|]+)"', text) for reason in found.split("|")}
    assert {"Degraded", "StackHung", "Quantizing"} <= named <= set(map(str, Reason))


def scraped_twice(series: dict[str, str]) -> dict[str, str]:
    """The series of a Prometheus that finds each pod both by its annotations and by a PodMonitor: they differ in the job."""
    found: dict[str, str] = {}
    for one, values in series.items():
        name, _, rest = one.partition("{")
        labels = rest.removesuffix("}")
        if re.search(r"\bjob=", labels):
            found[one] = values
            continue
        for job in ("annotations", "monitors"):
            found[f'{name}{{{labels}{"," if labels else ""}job="{job}"}}'] = values
    return found


def test_alerts_fire_for_their_problem_only(rules: Path, tmp_path: Path) -> None:
    alerts, paths = of(rules), list[str]()
    for name, (problem, quiet) in CASES.items():
        tests: list[Json] = []
        severity = alerts[name]["labels"]["severity"]
        firing = f'ALERTS{{alertname="{name}",alertstate="firing",severity="{severity}"}}'
        fires, found = "fires", f"count({firing}) or vector(0)"
        for series, expected, what in (
            (problem, 1, fires),
            (scraped_twice(problem), 1, f"{fires} once"),
            (quiet, 0, "is quiet"),
        ):
            samples = [{"labels": "{}", "value": expected}]
            tests.append(
                {
                    "name": f"{name} {what}",
                    "interval": "1m",
                    "input_series": [{"series": one, "values": values} for one, values in series.items()],
                    "promql_expr_test": [{"expr": found, "eval_time": "180m", "exp_samples": samples}],
                }
            )
        # Each alert by itself: all of them in all tests would be evaluated where nobody looks at them.
        own, path = tmp_path / f"{name}.rules.yaml", tmp_path / f"{name}.yaml"
        own.write_text(yamltext.dump({"groups": [{"name": "thunderfleet", "rules": [alerts[name]]}]}))
        path.write_text(yamltext.dump({"rule_files": [str(own)], "evaluation_interval": "1m", "tests": tests}))
        paths.append(str(path))
    promtool = find_programs(lambda event: None, MONITORING) / "promtool"
    assert "SUCCESS" in run(str(promtool), "check", "rules", "--lint=all", str(rules))
    said = run(str(promtool), "test", "rules", *paths)
    assert said.count("SUCCESS") == len(CASES), said


@pytest.mark.parametrize("off", ["a", "b.lan"])
def test_cables_of_a_mac_that_is_off_do_not_hide_a_cable_that_was_pulled(rules: Path, tmp_path: Path, off: str) -> None:
    ends = "a.tb1--b.lan.tb2"
    series = {
        f'thunderfleet_thunderboltlink_condition{{name="{ends}",type="Connected",reason="NodeNotReady"}}': "0x60",
        'thunderfleet_thunderboltlink_condition{name="c.tb1--d.tb1",type="Connected",reason="Unplugged"}': "0x60",
        **{f'thunderfleet_mac_ready{{node="{node}"}}': f"{int(node != off)}x60" for node in ("a", "b.lan", "c", "d")},
    }
    named = 'ALERTS{alertname="ThunderfleetCableDown",alertstate="firing"}'
    found = [
        {
            "expr": f"count by (name) ({named})",
            "eval_time": "60m",
            "exp_samples": [{"labels": '{name="c.tb1--d.tb1"}', "value": 1}],
        }
    ]
    inputs = [{"series": one, "values": values} for one, values in series.items()]
    test = {"interval": "1m", "input_series": inputs, "promql_expr_test": found}
    path = tmp_path / "test.yaml"
    path.write_text(yamltext.dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [test]}))
    run(str(find_programs(lambda event: None, MONITORING) / "promtool"), "test", "rules", str(path))


# What is seen of a fault with one cause, as series of an hour and three hours, and the one alert that must say so.
INFO = 'thunderfleet_{program}_info{{instance="m1:{port}",node="m1"}}'
SEEN_UNTIL = "1x60 _x120"
NOT_READY = f'thunderfleet_modeldeployment_not_ready_timestamp_seconds{{{OBJECT},instance="a"}}'
RESTARTS = f"thunderfleet_modeldeployment_group_restarts{{{GROUP}}}"
PEER_LOST = f'{FAILED}{{{GROUP},reason="PeerLost",node="m1",link=""}}'
LEADING = 'thunderfleet_operator_leading{instance="operator"}'
WITHOUT_LEADER = {LEADING: "1x60 0x120"}
MAC_IS_OFF = {
    INFO.format(program="agent", port=9440): SEEN_UNTIL,
    INFO.format(program="kubelet", port=10250): SEEN_UNTIL,
    'thunderfleet_build_info{instance="m1:9440",program="agent"}': SEEN_UNTIL,
    'thunderfleet_build_info{instance="m1:10250",program="kubelet"}': SEEN_UNTIL,
    'thunderfleet_build_info{instance="m1:20000",program="runner",node="m1"}': SEEN_UNTIL,
    **{f'up{{instance="m1:{port}"}}': "1x60 0x120" for port in (9440, 10250, 20000)},
}
ONE_CAUSE: dict[str, tuple[dict[str, str], str]] = {
    "a Mac is off": ({'thunderfleet_mac_ready{node="m1"}': "1x60 0x120", **MAC_IS_OFF}, "ThunderfleetMacNotReady"),
    "a Mac does not reach the API server": (
        {
            'thunderfleet_mac_ready{node="m1"}': "1x60 0x120",
            f'{LATE}{{node="m1",instance="m1:10250"}}': "0x60 0+60x120",
            INFO.format(program="agent", port=9440): "1x180",
        },
        "ThunderfleetMacNotReady",
    ),
    "a Mac has no CPU time left for its kubelet": (
        {
            'thunderfleet_mac_ready{node="m1"}': "1x180",
            f'{LATE}{{node="m1",instance="m1:10250"}}': "0x60 0 21 4 0 19" + " 0 21 4 0 19" * 23,
            INFO.format(program="agent", port=9440): "1x180",
        },
        "ThunderfleetKubeletLate",
    ),
    # The second cause is that there is no leader.
    "a Mac is off, then there is no leader": (
        {'thunderfleet_mac_ready{node="m1"}': "1x40 0x20 _x120", **MAC_IS_OFF, **WITHOUT_LEADER},
        "ThunderfleetMacNotReady",
    ),
    "there is no leader, then a Mac is off": (
        {'thunderfleet_mac_ready{node="m1"}': "1x60 _x120", **MAC_IS_OFF, **WITHOUT_LEADER},
        "ThunderfleetTargetDown",
    ),
    "a Mac was off while another replica was the leader": (
        {
            'thunderfleet_mac_ready{node="m1",instance="b"}': "0x30 _x150",
            'thunderfleet_mac_ready{node="m1",instance="a"}': "_x31 1x150",
            INFO.format(program="agent", port=9440): SEEN_UNTIL,
        },
        "ThunderfleetAgentMissing",
    ),
    "etcd does not answer": (
        {
            LEADING: "1x60 0x120",
            f'{PLANE_SILENT}{{instance="a",part="etcd"}}': "0x60 1x120",
            f'{PLANE_SILENT}{{instance="a",part="API server"}}': "0x180",
            # What follows from it: nobody can publish, and nobody can say who may read the metrics of a kubelet.
            'thunderfleet_agent_published_timestamp_seconds{instance="m1:9440"}': "0+60x60 3600x120",
            'thunderfleet_mac_ready{node="m1"}': "1x60 _x120",
            INFO.format(program="agent", port=9440): "1x180",
            INFO.format(program="kubelet", port=10250): SEEN_UNTIL,
            'thunderfleet_build_info{instance="m1:10250",program="kubelet"}': SEEN_UNTIL,
            'up{instance="m1:10250"}': "1x60 0x120",
        },
        "ThunderfleetControlPlaneSilent",
    ),
    "a group has given up": (
        {
            NOT_READY: "600x180",
            f'thunderfleet_modeldeployment_group_state{{{GROUP},state="GaveUp"}}': "1x180",
            f'thunderfleet_modeldeployment_condition{{{OBJECT},type="Placed",reason="GaveUp"}}': "0x180",
            PEER_LOST: "8900x180",
            RESTARTS: "10x180",
        },
        "ThunderfleetGroupGaveUp",
    ),
    "a group has no place": (
        {NOT_READY: "600x180", f'thunderfleet_modeldeployment_condition{{{OBJECT},type="Placed",reason="NoRoom"}}': "0x180"},
        "ThunderfleetModelDeploymentUnplaceable",
    ),
    "the hub has limited the rate for hours, so a model has no place": (
        {
            NOT_READY: "600x180",
            f'thunderfleet_modeldeployment_condition{{{OBJECT},type="Placed",reason="ModelNotResolved"}}': "0x180",
            f'thunderfleet_modeldeployment_condition{{{OBJECT},type="ModelResolved",reason="RateLimited"}}': "0x180",
        },
        "ThunderfleetModelDeploymentNotReady",
    ),
    "a group keeps failing": (
        {NOT_READY: "8000x180", PEER_LOST: "8900x180", RESTARTS: "4x180"},
        "ThunderfleetGroupCrashLooping",
    ),
    "a group has kept failing for so long that its model has not served for half an hour": (
        {NOT_READY: "600x180", PEER_LOST: "8900x180", RESTARTS: "4x180"},
        "ThunderfleetModelDeploymentNotReady",
    ),
    "an agent has ended": (
        {
            'thunderfleet_mac_ready{node="m1"}': "1x180",
            INFO.format(program="agent", port=9440): SEEN_UNTIL,
            'thunderfleet_build_info{instance="m1:9440",program="agent"}': SEEN_UNTIL,
            'up{instance="m1:9440"}': "1x60 0x120",
        },
        "ThunderfleetAgentMissing",
    ),
    "a cable flaps": (
        {
            'thunderfleet_thunderboltlink_condition{name="a.tb1--b.tb1",type="Connected",reason="Flapping"}': "0x180",
            'thunderfleet_thunderboltlink_flapping{name="a.tb1--b.tb1"}': "1x180",
        },
        "ThunderfleetCableFlapping",
    ),
    "a kubelet cannot be scraped": (
        {
            'thunderfleet_mac_ready{node="m1"}': "1x180",
            INFO.format(program="agent", port=9440): "1x180",
            INFO.format(program="kubelet", port=10250): SEEN_UNTIL,
            'thunderfleet_build_info{instance="m1:9440",program="agent"}': "1x180",
            'thunderfleet_build_info{instance="m1:10250",program="kubelet"}': SEEN_UNTIL,
            'up{instance="m1:9440"}': "1x180",
            'up{instance="m1:10250"}': "1x60 0x120",
        },
        "ThunderfleetTargetDown",
    ),
    "RDMA of a Mac hangs, and the Mac is in quarantine for it": (
        {
            'thunderfleet_mac_ready{node="m1"}': "1x180",
            'thunderfleet_agent_info{node="m1"}': "1x180",
            'thunderfleet_mac_condition{node="m1",type="RDMAReady",reason="StackHung"}': "0x180",
            'thunderfleet_mac_condition{node="m1",type="Quarantined",reason="StackHung"}': "1x180",
        },
        "ThunderfleetRDMAHung",
    ),
}


def test_one_cause_has_one_alert(rules: Path, tmp_path: Path) -> None:
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
    tests: list[Json] = []
    for problem, (series, expected) in ONE_CAUSE.items():
        also = ["ThunderfleetOperatorWithoutLeader"] * ("no leader" in problem)
        samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in (expected, *also)]
        tests.append(
            {
                "name": problem,
                "interval": "1m",
                "input_series": [{"series": one, "values": values} for one, values in {LEADING: "1x180", **series}.items()],
                "promql_expr_test": [{"expr": firing, "eval_time": "150m", "exp_samples": samples}],
            }
        )
    path = tmp_path / "test.yaml"
    path.write_text(yamltext.dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests}))
    run(str(find_programs(lambda event: None, MONITORING) / "promtool"), "test", "rules", str(path))


def test_a_kubelet_that_ends_pods_because_its_disk_is_full_has_an_alert(rules: Path, tmp_path: Path) -> None:
    series = {f'thunderfleet_mac_pressure{{node="m1",type="{kind}"}}': f"{full}x60" for kind, full in PRESSURES.items()}
    firing = 'count by (alertname, node) (ALERTS{alertstate="firing",node="m1"})'
    samples = [{"labels": '{alertname="ThunderfleetMacDiskFull",node="m1"}', "value": 1}]
    inputs = [{"series": one, "values": values} for one, values in series.items()]
    found = [{"expr": firing, "eval_time": "60m", "exp_samples": samples}]
    test = {"interval": "1m", "input_series": inputs, "promql_expr_test": found}
    path = tmp_path / "test.yaml"
    path.write_text(yamltext.dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [test]}))
    run(str(find_programs(lambda event: None, MONITORING) / "promtool"), "test", "rules", str(path))


@pytest.mark.parametrize(
    ("labels", "what"),
    [
        (
            'instance="m1:20000",program="runner",namespace="team",deployment="qwen",group="0",rank="1",node="m1"',
            "The runner at m1:20000 (rank 1 of group 0 of ModelDeployment team/qwen) on m1",
        ),
        ('instance="m1:9440",program="agent"', "The agent at m1:9440 on m1"),
        ('instance="10.0.0.9:9443",program="router"', "The router at 10.0.0.9:9443"),
    ],
    ids=["runner", "agent", "router"],
)
def test_a_program_without_descriptors_is_named(rules: Path, tmp_path: Path, labels: str, what: str) -> None:
    name = "ThunderfleetDescriptorsExhausted"
    alert = of(rules)[name]
    series = {f"thunderfleet_process_free_descriptors{{{labels}}}": "3x60", INFO.format(program="agent", port=9440): "1x60"}
    said = {**alert["annotations"], "summary": f"{what} is close to its limit of open files and connections"}
    fires = {"exp_labels": {**dict(re.findall(r'(\w+)="([^"]*)"', labels)), **alert["labels"]}, "exp_annotations": said}
    test = {
        "interval": "1m",
        "input_series": [{"series": one, "values": values} for one, values in series.items()],
        "alert_rule_test": [{"eval_time": "60m", "alertname": name, "exp_alerts": [fires]}],
    }
    own, path = tmp_path / "rules.yaml", tmp_path / "test.yaml"
    own.write_text(yamltext.dump({"groups": [{"name": "thunderfleet", "rules": [alert]}]}))
    path.write_text(yamltext.dump({"rule_files": [str(own)], "evaluation_interval": "1m", "tests": [test]}))
    run(str(find_programs(lambda event: None, MONITORING) / "promtool"), "test", "rules", str(path))


@pytest.mark.parametrize("program", ["operator", "agent", "runner", "router", "kubelet"])
def test_promtool_has_no_complaint_about_any_metric(program: str) -> None:
    """About names, types and descriptions, also of metrics that a fleet shows rarely. Every program has a registry."""
    spec = importlib.util.spec_from_file_location("generate_reference", ROOT / "docs/generate_reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    promtool = str(find_programs(lambda event: None, MONITORING) / "promtool")
    page = generate_latest(getattr(module, f"_{program}_metrics")()).decode()
    assert page.count("# TYPE thunderfleet_") > 10

    def said(text: str) -> str:
        done = subprocess.run(
            [promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
        )
        return done.stdout + done.stderr

    assert said(page) == ""
    assert "no help text" in said(page + "# TYPE thunderfleet_a gauge\nthunderfleet_a 1\n")


def test_alerts_name_what_has_the_problem(rules: Path) -> None:
    for name, alert in of(rules).items():
        named = re.findall(r"\$labels\.(namespace|name|node|instance|kind|component)", alert["annotations"]["summary"])
        assert bool(named) is (name not in OF_THE_CLUSTER), name
