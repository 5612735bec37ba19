"""The end of the certificates of a control plane, as the kubelet on its Mac exports it."""

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from thunderfleet_controlplane.pki import CA_DAYS, LEAF_DAYS, make_pki
from thunderfleet_kubelet.pods.queries import PodCounts
from thunderfleet_kubelet.serving.expiry import ControlPlaneCertificates
from thunderfleet_kubelet.serving.metrics import Metrics

NAME = "thunderfleet_control_plane_certificate_expiry_seconds"
AUTHORITIES = {"ca", "front-proxy-ca", "etcd-ca"}
NOW = datetime(2026, 3, 1, tzinfo=UTC)


def exported(metrics: Metrics) -> dict[str, float]:
    """The end of each certificate in days from NOW, by its name."""
    metrics.text(PodCounts(0, 0, 0))
    samples = [sample for family in metrics.registry.collect() for sample in family.samples if sample.name == NAME]
    assert {sample.labels["node"] for sample in samples} <= {"studio-1"}
    return {sample.labels["name"]: (sample.value - NOW.timestamp()) / 86400 for sample in samples}


def test_every_certificate_of_a_control_plane_is_exported_and_a_renewal_shows_at_once(tmp_path: Path) -> None:
    early = NOW - timedelta(days=LEAF_DAYS - 20)
    pki = make_pki(tmp_path / "pki", ["127.0.0.1"], ["127.0.0.1"], early)
    metrics = Metrics("studio-1", "v0", lambda: (0, 0), ControlPlaneCertificates(pki.folder).read)
    found = exported(metrics)
    assert set(found) == {file.stem for file in pki.folder.glob("*.crt")} > {"apiserver", "etcd", "admin", *AUTHORITIES}
    assert {round(days) for name, days in found.items() if name not in AUTHORITIES} == {20}
    assert {round(found[name]) for name in AUTHORITIES} == {CA_DAYS - LEAF_DAYS + 20}
    make_pki(tmp_path / "pki", ["127.0.0.1"], ["127.0.0.1"], NOW)
    renewed = exported(metrics)
    assert {round(days) for name, days in renewed.items() if name not in AUTHORITIES} == {LEAF_DAYS}
    assert {name: renewed[name] for name in AUTHORITIES} == {name: found[name] for name in AUTHORITIES}


def test_a_damaged_file_hides_no_other_and_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pki = make_pki(tmp_path / "pki", [], [], NOW)
    pki.pair("etcd").certificate.write_text("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
    pki.pair("admin").certificate.write_text("")
    reader = ControlPlaneCertificates(pki.folder)
    with caplog.at_level(logging.WARNING):
        first, second = reader.read(), reader.read()
    assert first == second and {"apiserver", "ca"} <= first.keys() and not {"etcd", "admin"} & first.keys()
    assert [record.message.split(": ")[0] for record in caplog.records] == [
        f"cannot read the certificate {pki.folder}/{name}.crt" for name in ("admin", "etcd")
    ]


def test_a_folder_without_certificates_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert ControlPlaneCertificates(tmp_path / "none").read() == {}
    assert "run `sudo thunderfleet init`" in caplog.text


def test_other_nodes_export_none() -> None:
    assert exported(Metrics("studio-1", "v0", lambda: (0, 0))) == {}
