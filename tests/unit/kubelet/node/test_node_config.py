"""The configuration file: valid settings, and the errors for invalid ones."""

import sys
from pathlib import Path

import pytest
from thunderfleet_kubelet import configprocess
from thunderfleet_kubelet.answers import Answers
from thunderfleet_kubelet.config import ConfigError, ImagePulls, PodUsers
from thunderfleet_kubelet.configfile import SETTINGS, load, parse

WHOLE = """
nodeName: studio-1
addresses: [192.168.64.11]
port: 10250
path: [/srv/machines/studio-1/bin]
pythonPath: [/srv/recorded]
images: {"thunderfleet/thunderfleet:0.1.0": /srv/image}
podUsers: {first: 70000, count: 30}
labels: {rack: a}
maxPods: 20
"""


def test_a_whole_file() -> None:
    config = parse(WHOLE, "kubelet.yaml")
    assert config.node_name == "studio-1"
    assert config.path == [Path("/srv/machines/studio-1/bin")]
    assert config.images == {"thunderfleet/thunderfleet:0.1.0": Path("/srv/image")}
    assert config.pod_users.ids == range(70000, 70030)
    assert config.max_pods == 20


def test_the_defaults_are_usable_by_themselves() -> None:
    config = load(None)
    assert config.port == 10250
    assert config.addresses == [], "those of the machine, as they are then"
    assert config.pod_users == PodUsers(first=1_900_000_000, count=1000)
    as_written = SETTINGS.dump_json(SETTINGS.validate_python({}), by_alias=True).decode()
    assert config == parse(as_written, "the defaults"), "the defaults pass the checks too"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("addreses: [1.2.3.4]", ["addreses", "unknown setting", "addresses"]),
        ("port: 70000", ["port", "65535", "70000"]),
        ("nodeName: Studio_1", ["nodeName", "Studio_1", "lower-case"]),
        ("addresses: [studio.local]", ["addresses", "studio.local", "IP address"]),
        ("addresses: [0.0.0.0]", ["addresses", "0.0.0.0", "own address"]),
        ("path: [bin]", ["path", "bin", "absolute"]),
        ("images: {a: b}", ["images", "absolute"]),
        ("labels: {node-role.kubernetes.io/control-plane: ''}", ["labels", "node-role.kubernetes.io/control-plane"]),
        ("podUsers: {first: 0}", ["podUsers.first", "1000", "0"]),
        ("podUsers: {first: 2147483000}", ["podUsers", "2147483648", "2147484000"]),
        ("podUsers: {count: 109}", ["podUsers.count is 109", "maxPods, 110"]),
        ("defaultUser: {uid: 65534, gid: 65534}", ["defaultUser", "each pod has its own user", "podUsers"]),
        ("evictionHard: {nodefs: 10%}", ["evictionHard", "'nodefs' is not a signal", "nodefs.available"]),
        ("evictionHard: {nodefs.available: ten}", ["nodefs.available", "'ten'", "10% or 5Gi"]),
        ("evictionHard: {nodefs.available: 100%}", ["nodefs.available", "less than 100%"]),
        ("containerLogMaxSize: 1Ki", ["containerLogMaxSize", "1Ki", "64Ki"]),
        ("containerLogMaxFiles: 1", ["containerLogMaxFiles", "2"]),
        ("- a", ["mapping", "list"]),
        ("a: [", ["invalid YAML"]),
    ],
)
def test_what_is_wrong_is_named_with_its_file(text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "/etc/kubelet.yaml")
    said = str(caught.value)
    assert said.startswith("/etc/kubelet.yaml: ")
    assert "\n" not in said
    for word in words:
        assert word in said


@pytest.mark.parametrize("python", [sys.executable, "/nowhere/python"])
def test_a_process_reads_the_same_and_says_the_same(python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without the process."""
    monkeypatch.setattr(sys, "executable", python)
    file = tmp_path / "kubelet.yaml"
    file.write_text(WHOLE + "cableNetwork: 10.0.0.0/16\nimagePulls: {registries: [a.example], caFile: /ca.crt}\n")
    answers = Answers(tmp_path / "none" / "answers.json")
    read = configprocess.load(file, "other", answers)
    assert read == load(file)
    assert type(read.image_pulls) is ImagePulls
    assert configprocess.load(None, "studio-7", answers) == parse("nodeName: studio-7", "")
    file.write_text("prot: 1")
    with pytest.raises(ConfigError) as caught:
        configprocess.load(file, "other", answers)
    with pytest.raises(ConfigError) as direct:
        load(file)
    assert str(caught.value) == str(direct.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*none\.yaml: No such file"):
        load(tmp_path / "none.yaml")
