"""The inputs of a container: user, environment, command line, volumes; and admission."""

import base64
import ctypes
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_kubelet.containers import mac_memory, usage
from thunderfleet_kubelet.containers.errors import ContainerConfigError, ImageError, VolumeError
from thunderfleet_kubelet.containers.inputs import environment, images, user, volume_content, volumes
from thunderfleet_kubelet.containers.inputs.environment import expand
from thunderfleet_kubelet.containers.inputs.images import Image
from thunderfleet_kubelet.containers.inputs.own_image import PROGRAMS, OwnImage, own_image
from thunderfleet_kubelet.containers.inputs.sources import Sources
from thunderfleet_kubelet.containers.inputs.user import ContainerUser, KubeletUser, PodUser
from thunderfleet_kubelet.containers.inputs.volume_content import File, References, TokenRequest
from thunderfleet_kubelet.pods.decide import admission
from thunderfleet_kubelet.pods.objects import Token
from thunderfleet_kubelet.shim import processes
from thunderfleet_lib.quantity import parse_quantity

Json = dict[str, Any]
ROOT = KubeletUser(0, 0)
PRIVILEGED = os.geteuid() == 0
IMAGE = Image("i:1", Path("/images/i"), env=(("LANG", "C"), ("PATH", "/image/path")), entrypoint=("run",), command=("it",))


def pod(container: Json | None = None, **spec: Any) -> Json:
    return {
        "metadata": {
            "name": "p",
            "namespace": "n",
            "uid": "u",
            "labels": {"app": "a", "b": 'say "x"'},
            "annotations": {"note": "hi"},
        },
        "spec": {"hostNetwork": True, "containers": [container or {"name": "c", "image": "i:1"}], **spec},
        "status": {},
    }


# Images


@pytest.fixture
def installation() -> Iterator[Path]:
    """A Python environment in folders that all users can read."""
    # pytest's own folders are open to their owner alone.
    with tempfile.TemporaryDirectory() as name:
        prefix = Path(name)
        for folder in (prefix, prefix / "bin", prefix / "lib"):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o755)
        for program in (*PROGRAMS, "python"):
            (prefix / "bin" / program).touch()
            (prefix / "bin" / program).chmod(0o755)
        yield prefix


def test_an_installation_is_the_image_of_its_version(installation: Path) -> None:
    found = own_image("0.1.0", installation, installation / "bin/python", other_users=True)
    assert found == OwnImage("0.1.0", installation)
    assert found.images == {"thunderfleet/thunderfleet:0.1.0": installation}


@pytest.mark.parametrize("closed", [".", "bin", "lib", "bin/thunderfleet-agent", "bin/python"])
def test_an_installation_that_other_users_cannot_read_is_no_image(installation: Path, closed: str) -> None:
    (installation / closed).chmod(0o750)
    found = own_image("0.1.0", installation, installation / "bin/python", other_users=True)
    assert found.images == {}
    assert f"cannot read {(installation / closed).resolve()};" in found.problem
    assert own_image("0.1.0", installation, installation / "bin/python", other_users=False).problem == ""


def test_an_installation_without_programs_is_no_image(installation: Path) -> None:
    (installation / "bin/thunderfleet-runner").unlink()
    found = own_image("0.1.0", installation, installation / "bin/python", other_users=False)
    assert (found.images, found.problem) == ({}, f"{installation / 'bin'} has no thunderfleet-runner")


@pytest.mark.parametrize(
    ("name", "problem", "sentences"),
    [
        ("thunderfleet/thunderfleet:0.2.0", "", ["this machine has version 0.1.0", "install version 0.2.0", "image.tag"]),
        ("thunderfleet/thunderfleet:0.1.0", "it is closed", ["/opt/own has this version", "it is closed"]),
        ("elsewhere/x:1", "", ["'elsewhere/x:1' is not configured", "(configured: a:1)"]),
    ],
)
def test_what_to_do_about_an_image_that_is_missing(name: str, problem: str, sentences: list[str]) -> None:
    own = OwnImage("0.1.0", Path("/opt/own"), problem)
    with pytest.raises(ImageError) as caught:
        images.find({"a:1": Path("/img")}, name, "IfNotPresent", own.missing(name))
    assert caught.value.reason == "ImagePullBackOff"
    assert all(sentence in str(caught.value) for sentence in sentences), str(caught.value)


# Users


OTHERS = range(70_000, 70_100)
OWN = PodUser(70_001, OTHERS)


@pytest.mark.parametrize(
    ("container", "of_pod", "image_user", "own", "expected"),
    [
        ({}, {}, "", OWN, ContainerUser(70_001, 70_001)),
        ({"runAsUser": 0}, {}, "", OWN, ContainerUser(0, 0, (70_001,))),
        ({"runAsUser": 5000}, {"runAsUser": 6000, "runAsGroup": 7}, "", None, ContainerUser(5000, 7)),
        ({"runAsUser": 5000}, {"runAsUser": 6000, "runAsGroup": 7}, "", OWN, ContainerUser(5000, 7, (70_001,))),
        ({}, {"runAsUser": 54321}, "", OWN, ContainerUser(54321, 70_001)),
        ({"runAsUser": 70_001}, {}, "", OWN, ContainerUser(70_001, 70_001)),
        ({}, {}, "12:13", OWN, ContainerUser(12, 13, (70_001,))),
        ({}, {"supplementalGroups": [9, 8], "fsGroup": 7}, "", OWN, ContainerUser(70_001, 70_001, (7, 8, 9))),
        ({}, {"runAsGroup": 9, "supplementalGroups": [9, 8]}, "", OWN, ContainerUser(70_001, 9, (8, 70_001))),
    ],
)
def test_identity(container: Json, of_pod: Json, image_user: str, own: PodUser | None, expected: ContainerUser) -> None:
    spec = {"name": "c", "securityContext": container}
    assert user.decide(pod(securityContext=of_pod), spec, image_user, own, ROOT) == expected


@pytest.mark.parametrize(
    ("context", "own", "kubelet", "sentence"),
    [
        ({}, None, ROOT, "would run as root.*the kubelet's own user.*set securityContext.runAsUser"),
        ({"runAsUser": 0, "runAsNonRoot": True}, None, ROOT, "runAsNonRoot"),
        ({"runAsUser": 1000}, None, KubeletUser(0, 0, ((0, 1),)), "user namespace maps only user 0"),
        ({"runAsUser": 1000}, None, KubeletUser(501, 20), "the kubelet is not root.*its own user, 501"),
        ({"supplementalGroups": [5]}, None, KubeletUser(501, 20), "supplementary groups"),
        ({"runAsUser": 70_002}, OWN, ROOT, "cannot run as user 70002: podUsers in the kubelet's configuration reserves it"),
        ({"runAsGroup": 70_002}, OWN, ROOT, "cannot run as group 70002"),
        ({"runAsUser": 5000, "supplementalGroups": [70_000]}, OWN, ROOT, "cannot run as group 70000"),
        ({"fsGroup": 70_099}, OWN, ROOT, "cannot run as group 70099"),
    ],
)
def test_identity_that_cannot_be_had(context: Json, own: PodUser | None, kubelet: KubeletUser, sentence: str) -> None:
    of_pod = {key: value for key, value in context.items() if key in ("supplementalGroups", "fsGroup")}
    with pytest.raises(ContainerConfigError, match=sentence):
        user.decide(pod(securityContext=of_pod), {"name": "c", "securityContext": context}, "", own, kubelet)


def test_the_image_cannot_name_the_user_of_another_pod() -> None:
    with pytest.raises(ContainerConfigError, match="cannot run as user 70002"):
        user.decide(pod(), {"name": "c"}, "70002", OWN, ROOT)
    with pytest.raises(ContainerConfigError, match="cannot run as group 70003"):
        user.decide(pod(), {"name": "c"}, "12:70003", OWN, ROOT)


@pytest.mark.parametrize("named", ["", "0", "root", "501", "1001", "1001:0", "65532:65532", "an-account-of-the-image", "70002"])
def test_a_pulled_image_chooses_no_user_and_no_group(named: str) -> None:
    """Images of two namespaces that name the same user would share it, with environment and processes."""
    assert user.decide(pod(), {"name": "c"}, named, OWN, ROOT, pulled=True) == ContainerUser(70_001, 70_001)
    # The pod does, and so does an image that was installed on this Mac by hand.
    chosen = {"name": "c", "securityContext": {"runAsUser": 501, "runAsGroup": 20}}
    assert user.decide(pod(), chosen, named, OWN, ROOT, pulled=True) == ContainerUser(501, 20, (70_001,))
    assert user.decide(pod(), {"name": "c"}, "501:20", OWN, ROOT) == ContainerUser(501, 20, (70_001,))


def test_mapped_root_is_an_unprivileged_user() -> None:
    assert user.decide(pod(), {"name": "c"}, "", None, KubeletUser(0, 0, ((0, 1),))) == ContainerUser(0, 0)
    assert user.decide(pod(), {"name": "c"}, "", None, KubeletUser(501, 20)) == ContainerUser(501, 20)


# Environment


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)-$(B)", "1-two"),
        ("$(C)", "$(C)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(A", "$(A"),
        ("$()", "$()"),
    ],
)
def test_expansion(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "B": "two"}) == expected


@given(st.text())
def test_text_without_dollars_is_left_alone(text: str) -> None:
    plain = text.replace("$", "")
    assert expand(plain, {"A": "1"}) == plain


def build(container: Json, sources: Sources | None = None) -> dict[str, str]:
    whole = {"name": "c", "image": "i:1", **container}
    sources = sources or Sources(node_name="node", host_ip="10.1.1.1")
    return environment.build(pod(whole), whole, IMAGE, Path("/sandbox"), sources)


def test_environment_from_every_source() -> None:
    secret = {"data": {"PW": base64.b64encode(b"hush").decode()}}
    sources = Sources(
        node_name="node",
        host_ip="10.1.1.1",
        host_ips=("10.1.1.1", "10.1.1.2"),
        api_server=("10.9.9.9", 6443),
        path=(Path("/mac/bin"),),
        python_path=(Path("/mac/python"),),
        allocatable={"cpu": "8", "memory": "1Gi"},
        config_maps={"cm": {"data": {"ONE": "1", "TWO": "2"}}, "gone": None},
        secrets={"s": secret},
    )
    container = {
        "resources": {"limits": {"cpu": "1500m"}, "requests": {"memory": "5M"}},
        "envFrom": [
            {"prefix": "X_", "configMapRef": {"name": "cm"}},
            {"secretRef": {"name": "s"}},
            {"configMapRef": {"name": "gone", "optional": True}},
        ],
        "env": [
            {"name": "ONE", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "ONE"}}},
            {"name": "NONE", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "NO", "optional": True}}},
            {"name": "UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "IPS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIPs"}}},
            {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
            {"name": "MILLIS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
            {"name": "MIB", "valueFrom": {"resourceFieldRef": {"resource": "requests.memory", "divisor": "1Mi"}}},
            {"name": "ALL", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}},
            {"name": "URL", "value": "https://$(KUBERNETES_SERVICE_HOST):$(KUBERNETES_SERVICE_PORT)/$(POD)/$(LATER)"},
            {"name": "LATER", "value": "$(X_TWO)"},
            {"name": "CONTAINER_SANDBOX_MOUNT_POINT", "value": "/elsewhere"},
        ],
    }
    env = build(container, sources)
    assert env["URL"] == "https://10.9.9.9:6443/p/$(LATER)"
    expected = {
        "X_ONE": "1", "ONE": "1", "PW": "hush", "UID": "u", "POD": "p", "APP": "a", "NODE": "node",
        "IPS": "10.1.1.1,10.1.1.2", "CPUS": "2",
        "MILLIS": "1500", "MIB": "5", "ALL": str(2**30), "LATER": "2", "LANG": "C", "HOME": "/sandbox", "HOSTNAME": "node",
        "TMPDIR": "/sandbox/tmp", "CONTAINER_SANDBOX_MOUNT_POINT": "/sandbox", "PYTHONPATH": "/mac/python",
        "PATH": "/mac/bin:/images/i/bin:/image/path",
    }  # fmt: skip
    assert {name: env[name] for name in expected} == expected
    assert "NONE" not in env


def test_nothing_of_the_kubelet_leaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBELET_SECRET", "x")
    assert set(build({})) == {
        "CONTAINER_SANDBOX_MOUNT_POINT", "HOME", "HOSTNAME", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT",
        "KUBERNETES_SERVICE_PORT_HTTPS", "LANG", "LOGNAME", "PATH", "TMPDIR", "USER",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("variable", "sentence"),
    [
        ({"valueFrom": {"secretKeyRef": {"name": "no", "key": "k"}}}, "Secret 'no' not found in the pod's namespace"),
        ({"valueFrom": {"configMapKeyRef": {"name": "cm", "key": "k"}}}, "ConfigMap 'cm' has no key 'k'"),
        ({"valueFrom": {"fieldRef": {"fieldPath": "spec.nothing"}}}, "unsupported fieldRef path 'spec.nothing'"),
        ({"valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "containerName": "z"}}}, "container 'z'"),
    ],
)
def test_what_an_environment_misses(variable: Json, sentence: str) -> None:
    with pytest.raises(ContainerConfigError, match=sentence):
        build({"env": [{"name": "A", **variable}]}, Sources(config_maps={"cm": {"data": {}}}))


@pytest.mark.parametrize(
    ("container", "argv"),
    [
        ({}, ["run", "it"]),
        ({"args": ["$(A)"]}, ["run", "1"]),
        ({"command": ["x"]}, ["x"]),
        ({"command": ["x"], "args": ["y"]}, ["x", "y"]),
    ],
)
def test_command_line(container: Json, argv: list[str]) -> None:
    assert environment.command_line({"name": "c", **container}, IMAGE, {"A": "1"}) == argv


TOO_MUCH = "more than 2097152 characters together"


def test_variables_that_refer_to_each_other_do_not_fill_the_memory() -> None:
    """A gibibyte and a half, from six hundred characters of a spec."""
    chained = [{"name": "A", "value": "x" * 64}, *({"name": two, "value": f"$({one})" * 70} for one, two in ("AB", "BC", "CD"))]
    env = build({"env": chained[:3]})
    assert len(env["C"]) == 64 * 70 * 70
    with pytest.raises(ContainerConfigError, match=TOO_MUCH):
        build({"env": chained})
    with pytest.raises(ContainerConfigError, match=TOO_MUCH):
        build({"env": [{"name": f"V{number}", "value": "x" * 2**17} for number in range(17)]})
    with pytest.raises(ContainerConfigError, match=TOO_MUCH):
        environment.command_line({"name": "c", "command": ["x", *["$(C)"] * 8]}, IMAGE, env)
    with pytest.raises(ContainerConfigError, match=TOO_MUCH):
        expand("$(C)" * 8, env)


def test_an_object_that_is_named_often_does_not_fill_the_memory() -> None:
    sources = Sources(config_maps={"cm": {"data": {"ONE": "x" * 2**20}}})
    often = [{"prefix": f"P{number}_", "configMapRef": {"name": "cm"}} for number in range(3)]
    with pytest.raises(ContainerConfigError, match=TOO_MUCH):
        build({"envFrom": often}, sources)
    assert len(build({"envFrom": often[:1]}, sources)["P0_ONE"]) == 2**20


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("", "/pods/s"),
        ("/w", "/pods/s/w"),
        ("w/x/", "/pods/s/w/x"),
        ("/pods/s/w", "/pods/s/w"),
        ("/pods/s", "/pods/s"),
        ("/../../etc", "/pods/s/etc"),
        ("../../etc", "/pods/s/etc"),
        ("/pods/s/../../etc", "/pods/s/etc"),
        ("/w/../../..", "/pods/s"),
        ("//w", "/pods/s/w"),
    ],
)
def test_a_working_folder_is_in_the_sandbox(wanted: str, expected: str) -> None:
    assert environment.working_folder({"workingDir": wanted}, IMAGE, Path("/pods/s")) == Path(expected)


def test_a_pulled_image_has_a_path_of_limited_length(tmp_path: Path) -> None:
    """Each of its folders is looked up."""
    assert images.pulled("i", tmp_path, {"Env": ["PATH=/bin:/usr/bin"]}, "").env == (("PATH", "/bin:/usr/bin"),)
    with pytest.raises(ValueError, match="PATH has 2097150 characters; at most 16384 are allowed"):
        images.pulled("i", tmp_path, {"Env": [f"PATH={'/a:' * 699_050}"]}, "")


def test_image_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"Env": ["A=b=c"], "Entrypoint": ["/bin/x"], "User": "1:2", "WorkingDir": "/w"}')
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "x").touch()
    image = images.find({"i": tmp_path}, "i", "IfNotPresent")
    assert (image.env, image.user) == ((("A", "b=c"),), "1:2")
    assert environment.command_line({"name": "c"}, image, {}) == ["/bin/x"]
    assert image.program("/bin/x") == str(tmp_path / "bin" / "x")
    assert image.program("/bin/sh-of-the-host") == "/bin/sh-of-the-host"
    assert image.program("bin/x") == "bin/x"
    assert environment.working_folder({}, image, Path("/sandbox")) == Path("/sandbox/w")
    (tmp_path / "config.json").write_text('{"Env": ["A"]}')
    with pytest.raises(ImageError, match="must be NAME=VALUE"):
        images.find({"i": tmp_path}, "i", "IfNotPresent")


# Volumes


def me() -> ContainerUser:
    return ContainerUser(os.geteuid(), os.getegid())


def test_volumes_switch_from_old_to_new_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "v"
    assert volumes.write_atomically(folder, {"a": File(b"1", 0o644), "d/b": File(b"2", 0o755)}, me())
    first = os.readlink(folder / "..data")
    assert not volumes.write_atomically(folder, {"a": File(b"1", 0o644), "d/b": File(b"2", 0o755)}, me())
    assert os.readlink(folder / "..data") == first
    assert (folder / "d" / "b").stat().st_mode & 0o777 == 0o700
    assert (folder / "a").stat().st_mode & 0o777 == 0o600
    assert volumes.write_atomically(folder, {"a": File(b"9", 0o644), "c": File(b"3", 0o600)}, me())
    assert sorted(path.name for path in folder.iterdir() if not path.name.startswith("..")) == ["a", "c"]
    assert (folder / "a").read_bytes() == b"9"
    assert not (folder / first).exists()
    assert folder.stat().st_mode & 0o022 == 0


@pytest.mark.parametrize("path", ["x" * 300, "a/b"])
def test_a_volume_that_cannot_be_written_does_not_fill_the_disk(tmp_path: Path, path: str) -> None:
    """The API server accepts these names."""
    folder = tmp_path / "v"
    volumes.write_atomically(folder, {"a": File(b"1", 0o644)}, me())
    (folder / "..2020_01_01").mkdir()
    for _ in range(3):
        with pytest.raises(OSError, match=r"File name too long|Not a directory|File exists"):
            volumes.write_atomically(folder, {"a": File(b"2" * 1000, 0o644), path: File(b"", 0o644)}, me())
    assert (folder / "a").read_text() == "1"
    assert len(list(folder.glob("..2*"))) <= 2, "the current content, and that of the last call"
    assert volumes.write_atomically(folder, {"a": File(b"2", 0o644)}, me())
    assert sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("..2")) == ["..data", "a"]
    assert len(list(folder.glob("..2*"))) == 1


def test_the_files_of_a_pod_are_limited() -> None:
    """A spec may name the same ConfigMap of a megabyte thousands of times."""
    sources = Sources(config_maps={"cm": {"data": {"ONE": "x" * 2**20}}})

    def planned(count: int) -> dict[str, File]:
        items = [[{"key": "ONE", "path": f"p{number}"}] for number in range(count)]
        content = {"sources": [{"configMap": {"name": "cm", "items": item}} for item in items]}
        return volume_content.plan({"name": "v", "projected": content}, pod(), sources, {})

    assert len(planned(63)) == 63
    with pytest.raises(VolumeError, match="need more than 64 MiB of the disk"):
        planned(64)
    deep = {"name": "cm", "items": [{"key": "ONE", "path": "a/" * 64 + "b"}]}
    with pytest.raises(VolumeError, match="more than 64 parts"):
        volume_content.plan({"name": "v", "configMap": deep}, pod(), sources, {})


def test_projected_volume() -> None:
    sources = Sources(
        config_maps={"cm": {"data": {"x": "1", "y": "2"}, "binaryData": {"z": base64.b64encode(b"\0").decode()}}},
        secrets={"s": {"data": {"k": base64.b64encode(b"v").decode()}}},
    )
    volume = {
        "name": "all",
        "projected": {
            "defaultMode": 0o440,
            "sources": [
                {"configMap": {"name": "cm", "items": [{"key": "x", "path": "deep/x", "mode": 0o400}]}},
                {"secret": {"name": "s"}},
                {"secret": {"name": "gone", "optional": True}},
                {"serviceAccountToken": {"path": "token", "audience": "a", "expirationSeconds": 700}},
                {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
            ],
        },
    }
    files = volume_content.plan(volume, pod(), sources, {TokenRequest("a", 700): "tok"})
    assert files == {
        "deep/x": File(b"1", 0o400),
        "k": File(b"v", 0o440),
        "token": File(b"tok", 0o600),
        "labels": File(b'app="a"\nb="say \\"x\\""', 0o440),
    }
    assert volume_content.references(pod(volumes=[volume])) == References(
        frozenset({"cm"}), frozenset({"s", "gone"}), frozenset({TokenRequest("a", 700)})
    )


@pytest.mark.parametrize(
    ("volume", "sentence"),
    [
        ({"configMap": {"name": "no"}}, "volume 'v': ConfigMap 'no' not found"),
        ({"configMap": {"name": "cm", "items": [{"key": "q", "path": "q"}]}}, "no key 'q'"),
        ({"configMap": {"name": "cm", "items": [{"key": "x", "path": "../x"}]}}, "must be relative"),
    ],
)
def test_what_a_volume_misses(volume: Json, sentence: str) -> None:
    with pytest.raises(VolumeError, match=sentence):
        volume_content.plan({"name": "v", **volume}, pod(), Sources(config_maps={"cm": {"data": {"x": ""}}}), {})


def test_host_path_types(tmp_path: Path) -> None:
    def check(path: Path, kind: str) -> Path:
        return volumes.check_host_path({"name": "h", "hostPath": {"path": str(path), "type": kind}})

    assert check(tmp_path / "new", "DirectoryOrCreate").is_dir()
    assert check(tmp_path / "file", "FileOrCreate").is_file()
    assert check(tmp_path / "nothing", "") == tmp_path / "nothing"
    with pytest.raises(VolumeError, match="is not of type Directory"):
        check(tmp_path / "file", "Directory")
    with pytest.raises(VolumeError, match="is not of type Socket"):
        check(tmp_path / "file", "Socket")


def test_an_owned_folder_goes_to_the_next_user_with_what_the_last_one_had(tmp_path: Path) -> None:
    store = tmp_path / "new" / "store"
    volume: Json = {"name": "owned-store", "hostPath": {"path": str(store)}}
    first, second = user.ContainerUser(70001, 70001), user.ContainerUser(70002, 70002)
    assert volumes.own_host_path(volume, {first if PRIVILEGED else me()}) is None
    assert store.is_dir()
    if not PRIVILEGED:
        return
    (store / "mine").mkdir()
    (store / "mine" / "file").write_text("x")
    (store / "others").write_text("x")
    secret = tmp_path / "secret"
    secret.write_text("x")
    (store / "link").symlink_to(secret)
    os.link(secret, store / "hard")
    for path in (store / "mine", store / "mine" / "file", store / "link"):
        os.chown(path, first.uid, first.gid, follow_symlinks=False)
    os.chown(store / "others", 70003, 70003)
    assert volumes.own_host_path(volume, {second}) is None
    owners = {path.name: path.lstat().st_uid for path in (store, *store.rglob("*"))}
    assert owners == {"store": 70002, "mine": 70002, "file": 70002, "link": 70002, "others": 70003, "hard": 0}
    assert secret.stat().st_uid == 0


@pytest.mark.skipif(not PRIVILEGED, reason="only root gives folders away")
def test_an_owned_folder_that_is_very_deep_is_reported(tmp_path: Path) -> None:
    """Users can execute programs in the pods that the operator creates in their namespaces."""
    volume: Json = {"name": "owned-store", "hostPath": {"path": str(tmp_path)}}
    assert volumes.own_host_path(volume, {user.ContainerUser(70001, 70001)}) is None
    (tmp_path / "/".join("d" * volumes.MAX_OWNED_DEPTH)).mkdir(parents=True)
    problem = volumes.own_host_path(volume, {user.ContainerUser(70002, 70002)})
    assert problem is not None and "16 folders deep" in problem
    assert tmp_path.stat().st_uid == 70001


def test_an_owned_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    volume: Json = {"name": "owned-store", "hostPath": {"path": str(tmp_path / "file" / "store")}}
    problem = volumes.own_host_path(volume, {me()})
    assert problem is not None and "owned-store" in problem
    (tmp_path / "link").symlink_to("/tmp")
    assert (
        not ROOT or volumes.own_host_path({"name": "owned-x", "hostPath": {"path": str(tmp_path / "link")}}, {me()}) is not None
    )


def test_mounts_are_links_and_lead_nowhere_else(tmp_path: Path) -> None:
    place, sandbox = tmp_path / "place", tmp_path / "sandbox"
    place.mkdir()
    sandbox.mkdir()

    def link(*mounts: Json) -> None:
        volumes.link_mounts({"volumeMounts": list(mounts)}, sandbox, {"v": place}, {"POD": "p"}, me())

    link({"name": "v", "mountPath": "/a/b"}, {"name": "v", "mountPath": "/c", "subPathExpr": "of-$(POD)"})
    assert (sandbox / "a" / "b").resolve() == place
    assert (sandbox / "c").resolve() == place / "of-p"
    (place / "out").symlink_to("/etc")
    for inner in ("../x", "out"):
        with pytest.raises(ContainerConfigError, match="subPath points outside volume 'v'"):
            link({"name": "v", "mountPath": "/d", "subPath": inner})
    with pytest.raises(ContainerConfigError, match="subPath points outside volume 'v'"):
        link({"name": "v", "mountPath": "/d", "subPathExpr": "/$(POD)"})
    (place / "circle").symlink_to("circle")
    with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
        link({"name": "v", "mountPath": "/d", "subPath": "circle"})
    with pytest.raises(ContainerConfigError, match="mount /m/n is inside mount /m;"):
        link({"name": "v", "mountPath": "/m"}, {"name": "v", "mountPath": "/m/n"})
    with pytest.raises(ContainerConfigError, match="volume 'w' not found in the pod"):
        link({"name": "w", "mountPath": "/m"})


# Admission


def asking(name: str = "p", **requests: str) -> Json:
    item = pod({"name": "c", "image": "i:1", "resources": {"requests": requests}})
    return {**item, "metadata": {**item["metadata"], "name": name}}


def test_resources_are_counted_again() -> None:
    allocatable = {"cpu": "2", "memory": "1Gi", "pods": "2"}

    def verdict(one: Json, *others: Json) -> str | None:
        answer = admission.reject(one, others, "node", {}, allocatable)
        return answer[0] if answer else None

    assert verdict(asking(cpu="2")) is None
    assert verdict(asking(cpu="1500m"), asking("q", cpu="501m")) == "OutOfcpu"
    assert verdict(asking(memory="1025Mi")) == "OutOfmemory"
    assert verdict(asking(), asking("q"), asking("r")) == "OutOfpods"
    assert verdict(asking(**{"example.com/gpu": "1"})) == "OutOfexample.com/gpu"
    ended = {**asking("q", cpu="2"), "status": {"phase": "Succeeded"}}
    assert verdict(asking(cpu="2"), ended) is None
    gpu = "thunderfleet.io/gpu-memory"
    allocatable[gpu] = "48Gi"
    assert verdict(asking(**{gpu: "24Gi"}), asking("q", **{gpu: "24Gi"})) is None
    assert verdict(asking(**{gpu: "24Gi"}), asking("q", **{gpu: "25Gi"})) == f"OutOf{gpu}"


def test_requests_are_the_larger_of_init_and_main() -> None:
    one = pod({"name": "c", "resources": {"requests": {"cpu": "1"}}})
    one["spec"]["initContainers"] = [
        {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "500m"}}},
        {"name": "i", "resources": {"limits": {"cpu": "2"}}},
    ]
    assert admission.requests(one) == {"cpu": parse_quantity("2500m")}


def test_selectors_and_ports_are_checked_again() -> None:
    labels = {"os": "darwin", "n": "5"}

    def verdict(spec: Json, *others: Json) -> str | None:
        answer = admission.reject({**pod(), "spec": {**pod()["spec"], **spec}}, others, "node", labels, {})
        return answer[0] if answer else None

    def affinity(**term: Any) -> Json:
        terms = {"nodeSelectorTerms": [{"matchExpressions": [term]}]}
        return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}

    assert verdict({"nodeSelector": {"os": "darwin"}}) is None
    assert verdict({"nodeSelector": {"os": "linux"}}) == "NodeAffinity"
    assert verdict(affinity(key="os", operator="NotIn", values=["linux"])) is None
    assert verdict(affinity(key="n", operator="Gt", values=["5"])) == "NodeAffinity"
    assert verdict(affinity(key="x", operator="Exists")) == "NodeAffinity"
    ported = {"containers": [{"name": "c", "ports": [{"containerPort": 80}]}]}
    other = {**pod(), "spec": {"hostNetwork": True, **ported}}
    assert verdict(ported) is None
    assert verdict(ported, other) == "NodePorts"


def test_foreign_pods_wait() -> None:
    foreign = pod({"name": "c", "image": "registry.example/cni:1"})
    problem = admission.cannot_run(foreign, {"i:1": 0}, True)
    assert problem is not None
    assert problem.reason == "NotRunnableOnMac"
    foreign["spec"]["nodeSelector"] = {"kubernetes.io/os": "darwin"}
    assert admission.cannot_run(foreign, {"i:1": 0}, True) is None
    claim = pod(volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "x"}}], runtimeClassName="macos")
    problem = admission.cannot_run(claim, {"i:1": 0}, True)
    assert problem is not None
    assert "data (persistentVolumeClaim)" in problem.message


# Output of ps on a Mac


def test_processes_are_found_in_what_ps_says() -> None:
    text = (
        b"  101     1   101 S    python x HOME=/r CONTAINER_SANDBOX_MOUNT_POINT=/r/a PATH=/bin\n"
        b"  102   101   101 Z    (sh) CONTAINER_SANDBOX_MOUNT_POINT=/r/a\n"
        b"  103     1   103 S    python 1 CONTAINER_SANDBOX_MOUNT_POINT=/r/ab\n"
        b"  104     1   104 R    python CONTAINER_SANDBOX_MOUNT_POINT=/r/a\n"
    )
    assert processes.marked_in(text, b"CONTAINER_SANDBOX_MOUNT_POINT=/r/a") == [101, 104]


def test_apple_binaries_without_environment_are_found_by_their_group_and_their_parents() -> None:
    text = (
        b"  109     7   109 S    sh -c a descendant that is listed before its parent\n"
        b"    7   101     7 S    sh -c a session of its own\n"
        b"  101     1   101 S    python CONTAINER_SANDBOX_MOUNT_POINT=/r/a\n"
        b"  110     1   200 S    sleep 1\n"
        b"  111     1   201 S    sleep 2\n"
        b"and a line that is none of a process\n"
    )
    assert processes.marked_in(text, b"CONTAINER_SANDBOX_MOUNT_POINT=/r/a", 200) == [7, 101, 109, 110]
    assert processes.marked_in(text, b"CONTAINER_SANDBOX_MOUNT_POINT=/r/b") == []


def test_usage_from_what_ps_says() -> None:
    text = (
        "  101     1   101   2048   1:02.50 python CONTAINER_SANDBOX_MOUNT_POINT=/r/a X=1\n"
        "  103   102   103   4096   0:01.00 sh -c an Apple binary below another\n"
        "  102   101   102   1024   0:00.25 sleep 1\n"
        "  105     1   104    256   0:00.50 sleep 2\n"
        "  106     1   104    512 1-00:00:01 other CONTAINER_SANDBOX_MOUNT_POINT=/r/b\n"
        "  107     1   107   9999   0:09.00 other CONTAINER_SANDBOX_MOUNT_POINT=/r/c\n"
    )
    sums: dict[str, tuple[float, int]] = {}
    for marker, seconds, size in usage.parse_ps(text, {"/r/a": 101, "/r/b": 104}).values():
        before = sums.get(marker, (0.0, 0))
        sums[marker] = (before[0] + seconds, before[1] + size)
    assert sums == {"/r/a": (63.75, 7168 * 1024), "/r/b": (86401.5, 768 * 1024)}


def test_the_gpu_memory_of_a_container_is_what_is_known_of_its_processes() -> None:
    one, other = usage.Usage(1.0, 10, 20, 5), usage.Usage(0.5, 1, 2)
    assert one + other == other + one == usage.Usage(1.5, 11, 22, 5)
    assert (one + one).gpu == 10
    assert (other + other).gpu is None, "unknown is not none"
    assert (one + usage.Usage(gpu=0)).gpu == 5


def test_the_structure_of_the_kernel_is_that_of_its_third_revision() -> None:
    """Offsets of mach/task_info.h."""
    info = mac_memory.TaskVmInfo
    assert (ctypes.sizeof(info), info.phys_footprint.offset, info.ledger_phys_footprint_peak.offset) == (336, 144, 168)
    assert info.ledger_tag_media_footprint.offset == 240
    assert (info.ledger_tag_graphics_footprint.offset, info.ledger_tag_graphics_footprint_compressed.offset) == (272, 280)
    assert info.ledger_tag_neural_footprint.offset == 304


@pytest.mark.parametrize(
    ("wall", "monotonic", "usable"),
    [
        (10.0, 10.0, True),
        (2880.0, 10.0, False),  # asleep in between
        (10.0, 2880.0, False),  # the clock was set back in between
        (-31_536_000.0, 10.0, False),  # a clock that was a year ahead, corrected
        (31_536_000.0, 10.0, False),
    ],
)
def test_a_token_is_replaced_by_whichever_clock_is_further(wall: float, monotonic: float, usable: bool) -> None:
    assert Token("t", 2880.0, (1e9, 500.0)).usable((1e9 + wall, 500.0 + monotonic)) == usable
