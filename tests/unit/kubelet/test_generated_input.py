"""Generated input for what the kubelet reads from strangers: images, streams of exec and port-forward, queries."""

import hashlib
import io
import json
import os
import stat
import tarfile
import tempfile
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from thunderfleet_kubelet.images.errors import PullError
from thunderfleet_kubelet.images.layer import Budget, UnpackError
from thunderfleet_kubelet.images.registry import manifest
from thunderfleet_kubelet.images.unpack import unpack
from thunderfleet_kubelet.pods.decide import admission, eviction, podspec
from thunderfleet_kubelet.pods.decide.eviction import Usage
from thunderfleet_kubelet.serving.channels import resize_of
from thunderfleet_kubelet.serving.parameters import BadRequest, log_options, stream_options
from thunderfleet_kubelet.serving.portforward import frames
from thunderfleet_kubelet.serving.portforward.headers import BLOCK_BYTES

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


# --- streams -------------------------------------------------------------------------------------------------------------


def size(width: Any, height: Any) -> bytes:
    return json.dumps({"Width": width, "Height": height}).encode()


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()) | st.builds(size, JSON, JSON))
@example(size(float("inf"), 1))
@example(b"[" * 5000)
@example(size("9" * 5000, 1))
def test_a_resize_is_a_size_or_ignored(data: bytes) -> None:
    found = resize_of(data)
    assert found is None or all(0 < side <= 65535 for side in found)


NUMBERS = st.integers(0, 2**31 - 1)
FRAMES = st.one_of(
    st.builds(
        lambda stream, headers: frames.FrameWriter().opening(stream, headers),
        NUMBERS,
        st.dictionaries(st.text("abc-:", max_size=8), st.text("xyz0", max_size=20), max_size=4),
    ),
    st.builds(lambda stream, data, fin: frames.FrameWriter.data(stream, data, fin=fin), NUMBERS, st.binary(), st.booleans()),
    st.builds(frames.FrameWriter.reset, NUMBERS, NUMBERS),
    st.builds(frames.FrameWriter.ping, NUMBERS),
    st.binary(max_size=40),
)


@given(st.lists(FRAMES, max_size=8), st.lists(st.tuples(NUMBERS, st.integers(0, 255)), max_size=3), st.integers(1, 64))
def test_any_frames_are_read_in_pieces_or_refused(parts: list[bytes], changes: list[tuple[int, int]], piece: int) -> None:
    sent = bytearray(b"".join(parts))
    for at, value in changes:
        if sent:
            sent[at % len(sent)] = value
    reader, got = frames.FrameReader(), 0
    try:
        for start in range(0, len(sent), piece):
            for frame in reader.feed(bytes(sent[start : start + piece])):
                got += len(frame.data) if isinstance(frame, frames.Data) else 0
                assert not isinstance(frame, frames.Opened) or sum(map(len, frame.headers)) <= BLOCK_BYTES
            assert len(reader._rest) <= BLOCK_BYTES + frames.HEAD
    except frames.ProtocolError:
        pass
    assert got <= len(sent)


KEYS = st.sampled_from(
    [
        "follow",
        "previous",
        "timestamps",
        "tailLines",
        "limitBytes",
        "sinceSeconds",
        "sinceTime",
        "stream",
        "input",
        "output",
        "tty",
    ]
)
VALUES = st.text(max_size=30) | st.sampled_from(
    [
        "true",
        "1",
        "-1",
        "0",
        "9" * 18,
        "Stdout",
        "2026-01-01T00:00:00Z",
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59.9-23:59",
    ]
)


@given(st.dictionaries(KEYS, VALUES))
def test_any_query_has_options_or_is_refused(query: dict[str, str]) -> None:
    for read in (lambda: log_options(query, NOW), lambda: stream_options(query)):
        try:
            read()
        except BadRequest as error:
            assert str(error)


# --- pods ----------------------------------------------------------------------------------------------------------------

WORDS = st.text(max_size=12)
INT64 = st.integers(0, 2**63 - 1)
RESOURCES = st.dictionaries(
    st.sampled_from(["cpu", "memory", "ephemeral-storage", "thunderfleet.io/gpu-memory"]),
    st.sampled_from(["0", "1", "1m", "1n", "0.5", "1e3", "9223372036854775807", "100E", "1Ei"]),
)
PROBE = st.fixed_dictionaries({"exec": st.just({"command": ["true"]})}, optional={"terminationGracePeriodSeconds": INT64})
CONTAINER = st.fixed_dictionaries(
    {"name": st.sampled_from(["a", "b"])},
    optional={
        "resources": st.fixed_dictionaries({}, optional={"requests": RESOURCES, "limits": RESOURCES}),
        "ports": st.lists(
            st.fixed_dictionaries({"containerPort": st.integers(1, 65535)}, optional={"hostPort": INT64}), max_size=2
        ),
        "securityContext": st.fixed_dictionaries({}, optional={"runAsUser": INT64, "runAsGroup": INT64}),
        "restartPolicy": st.just("Always"),
        "livenessProbe": PROBE,
        "startupProbe": PROBE,
    },
)
EXPRESSION = st.fixed_dictionaries(
    {"key": WORDS, "operator": st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"])},
    optional={"values": st.lists(WORDS | st.sampled_from(["1", "-", "9" * 30, "٣"]), max_size=2)},
)
TERM = st.fixed_dictionaries({}, optional={"matchExpressions": st.lists(EXPRESSION, max_size=2)})
PODS = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {"name": st.just("p"), "namespace": st.sampled_from(["n", "m"])}, optional={"deletionGracePeriodSeconds": INT64}
        ),
        "spec": st.fixed_dictionaries(
            {"containers": st.lists(CONTAINER, min_size=1, max_size=2)},
            optional={
                "initContainers": st.lists(CONTAINER, max_size=2),
                "overhead": RESOURCES,
                "priority": st.integers(-(2**31), 2**31 - 1),
                "terminationGracePeriodSeconds": INT64,
                "activeDeadlineSeconds": st.integers(1, 2**31 - 1),
                "hostNetwork": st.booleans(),
                "securityContext": st.fixed_dictionaries({}, optional={"runAsUser": INT64}),
                "volumes": st.lists(
                    st.fixed_dictionaries(
                        {
                            "name": WORDS,
                            "emptyDir": st.fixed_dictionaries({}, optional={"sizeLimit": st.sampled_from(["0", "1m", "1Ei"])}),
                        }
                    ),
                    max_size=2,
                ),
                "nodeSelector": st.dictionaries(WORDS, WORDS, max_size=1),
                "affinity": st.fixed_dictionaries(
                    {
                        "nodeAffinity": st.fixed_dictionaries(
                            {
                                "requiredDuringSchedulingIgnoredDuringExecution": st.fixed_dictionaries(
                                    {"nodeSelectorTerms": st.lists(TERM, max_size=2)}
                                )
                            }
                        )
                    }
                ),
            },
        ),
        "status": st.fixed_dictionaries({}, optional={"startTime": st.just("2026-01-01T00:00:00Z")}),
    }
)


@given(st.lists(PODS, min_size=1, max_size=3), PODS, st.integers(0, 2**63))
def test_no_pod_keeps_another_one_from_being_judged(others: list[Any], pod: Any, used: int) -> None:
    allocatable = {"cpu": "8", "memory": "64Gi", "pods": "10", "thunderfleet.io/gpu-memory": "48Gi"}
    found = admission.reject(pod, others, "mac-1", {"kubernetes.io/os": "darwin"}, allocatable, switches_users=True)
    assert found is None or all(found)
    usage = Usage({"v": used}, {"a": used}, {"a": used})
    order = eviction.ranked([(one, usage) for one in others])
    assert len(order) == sum(not podspec.is_critical(one) for one in others)
    for one in (*others, pod):
        assert 0 <= podspec.grace_of(one) <= 2.0**63 and podspec.qos_class(one)
        assert all(podspec.probe_grace_of(one, container) >= 0 for container in podspec.all_containers(one))
        podspec.deadline_of(one, 0.0)
        eviction.over_limit(one, usage)


# --- images --------------------------------------------------------------------------------------------------------------

DIGESTS = st.sampled_from([f"sha256:{'0' * 64}", "sha256:0", "../../etc/passwd", ""])
BLOBS = st.fixed_dictionaries(
    {},
    optional={
        "mediaType": st.sampled_from([*manifest.MANIFESTS, *manifest.COMPRESSIONS]) | JSON,
        "digest": DIGESTS | JSON,
        "size": st.integers(-1, 2**70) | JSON,
        "platform": st.fixed_dictionaries({}, optional={"os": st.just("linux") | JSON, "architecture": st.just("arm64") | JSON})
        | JSON,
    },
)
DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "mediaType": st.sampled_from([*manifest.MANIFESTS, *manifest.INDEXES]) | JSON,
        "config": BLOBS | JSON,
        "layers": st.lists(BLOBS | JSON, max_size=4) | JSON,
        "manifests": st.lists(BLOBS | JSON, max_size=4) | JSON,
        "os": st.just("linux") | JSON,
        "architecture": st.just("arm64") | JSON,
        "rootfs": st.fixed_dictionaries({"diff_ids": st.lists(DIGESTS | JSON, max_size=3) | JSON}) | JSON,
    },
)


@given((DOCUMENTS | JSON).map(lambda value: json.dumps(value).encode()) | st.binary(max_size=100))
def test_any_manifest_is_read_or_refused(content: bytes) -> None:
    platforms = [("linux", "arm64")]
    for media in ("", manifest.MANIFESTS[0], manifest.INDEXES[0]):
        try:
            kind, document = manifest.read(content, media)
            if kind in manifest.INDEXES:
                assert manifest.choose(document, platforms).media in manifest.MANIFESTS
            else:
                found = manifest.parse(document, 2**40)
                assert found.size <= 2**40 and len(found.layers) <= manifest.MAX_LAYERS
        except PullError as error:
            assert len(str(error)) < 1000
    for layers in range(3):
        try:
            _, digests = manifest.check_config(content, layers, platforms)
            assert len(digests) == layers
        except PullError as error:
            assert len(str(error)) < 1000


PARTS = st.sampled_from(
    ["a", "b", "A", "..", ".", "", ".wh.a", ".wh..wh..opq", ".wh..", "c" * 256, "\u00e9", "e\u0301", "\udcff"]
)
PATHS = st.builds(lambda root, parts: root + "/".join(parts), st.sampled_from(["", "/"]), st.lists(PARTS, max_size=4))
TYPES = st.sampled_from(
    [
        tarfile.REGTYPE,
        tarfile.DIRTYPE,
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.FIFOTYPE,
        tarfile.CHRTYPE,
        tarfile.GNUTYPE_SPARSE,
        b"Z",
    ]
)


@st.composite
def members(draw: st.DrawFn) -> tuple[tarfile.TarInfo, bytes]:
    found = tarfile.TarInfo(draw(PATHS))
    # Mostly what is allowed, so that most archives are read far.
    found.type = draw(st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE]) | TYPES)
    found.linkname = draw(PATHS) if found.type in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
    content = draw(st.binary(max_size=20)) if found.type == tarfile.REGTYPE else b""
    found.size, found.mode = len(content), draw(st.sampled_from([0o644, 0o755, 0o000, 0o4755, 0o2755]))
    found.mtime = draw(st.integers(-1, 2**34))
    return found, content


def archive(entries: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    written = io.BytesIO()
    with tarfile.TarFile(fileobj=written, mode="w", format=tarfile.PAX_FORMAT, errors="surrogateescape") as made:
        for info, content in entries:
            made.addfile(info, io.BytesIO(content))
    return written.getvalue()


def outside(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Everything in ``folder`` but for the target, with modes and contents."""
    paths = [path for path in folder.rglob("*") if folder / "target" not in (path, *path.parents)]
    return {str(path): (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"") for path in paths}


@given(
    st.lists(st.lists(members(), max_size=6), min_size=1, max_size=3),
    st.lists(st.tuples(NUMBERS, st.integers(0, 255)), max_size=2),
)
def test_no_layer_writes_or_leads_outside_of_its_folder(
    layers: list[list[tuple[tarfile.TarInfo, bytes]]], changes: list[tuple[int, int]]
) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "target").mkdir()
        (folder / "a").mkdir()
        (folder / "a" / "b").write_text("precious")
        (folder / "b").write_text("precious")
        given_layers = []
        for number, entries in enumerate(layers):
            content = bytearray(archive(entries))
            for at, value in changes:
                content[at % len(content)] = value
            file = folder / f"layer-{number}"
            file.write_bytes(content)
            given_layers.append((file, "", f"sha256:{hashlib.sha256(content).hexdigest()}"))
        before = outside(folder)
        try:
            unpack(given_layers, folder / "target", Budget(2**20, 100))
            complete = True
        except (UnpackError, OSError, tarfile.TarError):
            complete = False
        assert outside(folder) == before
        for path in (folder / "target").rglob("*"):
            assert not path.lstat().st_mode & (stat.S_ISUID | stat.S_ISGID) or path.is_dir()
            assert path.is_symlink() or path.is_dir() or path.is_file()
            if complete and path.is_symlink():
                real = os.path.realpath(path)
                assert real == str(folder / "target") or real.startswith(f"{folder / 'target'}/")


@given(st.binary(max_size=300), st.sampled_from(["gzip", "zstd", ""]), st.booleans())
def test_any_bytes_as_a_layer_are_refused_or_empty(content: bytes, compression: str, wrapped: bool) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "target").mkdir()
        file = folder / "layer"
        if wrapped and compression == "gzip":
            packer = zlib.compressobj(wbits=31)
            content = packer.compress(content) + packer.flush()
        file.write_bytes(content)
        try:
            unpack(
                [(file, compression, f"sha256:{hashlib.sha256(content).hexdigest()}")], folder / "target", Budget(2**20, 100)
            )
        except Exception as error:
            # The process that unpacks reports all others as an internal error, without the name of the layer.
            assert (
                isinstance(error, UnpackError | OSError | tarfile.TarError | EOFError | zlib.error)
                or "zstd" in repr(error).lower()
            )
        assert not list((folder / "target").iterdir()) or not compression
