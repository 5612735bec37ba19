"""Layers of friends and of enemies, unpacked by the process that the kubelet starts for it."""

import asyncio
import gzip
import io
import json
import os
import select
import stat
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from thunderfleet_kubelet.images import layer as layers
from thunderfleet_kubelet.images import unpack as unpacking_process
from thunderfleet_kubelet.images import unpacking
from thunderfleet_kubelet.images.errors import PullError
from thunderfleet_kubelet.images.layer import Budget, UnpackError
from thunderfleet_kubelet.images.store import Store
from thunderfleet_kubelet.images.unpack import unpack
from thunderfleet_kubelet.images.unpacking import unpack as in_process

from tests.support.images.registry import Entry, Layer, digest_of, folder, link, script, tar
from tests.support.waiting import ASYNC_WAIT_SECONDS, until_async

MIB = 1024**2


def files_of(folder: Path, parts: Sequence[Layer]) -> list[tuple[Path, str, str]]:
    found = []
    for number, part in enumerate(parts):
        file = folder / f"layer-{number}"
        file.write_bytes(part.blob)
        compression = part.media.partition("+")[2]
        found.append((file, compression, digest_of(part.content)))
    return found


def unpacked(folder: Path, *parts: Layer, bytes: int = 100 * MIB, entries: int = 1000) -> Path:
    root = folder / "root"
    root.mkdir()
    unpack(files_of(folder, parts), root, Budget(bytes, entries))
    return root


def tree(root: Path) -> dict[str, str]:
    """Paths to contents, targets of links, or ``/`` for folders."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        found[name] = f"-> {os.readlink(path)}" if path.is_symlink() else "/" if path.is_dir() else path.read_text()
    return found


@pytest.mark.parametrize("compression", ["", "gzip", "zstd"])
async def test_layers_over_each_other_in_a_process(tmp_path: Path, compression: str) -> None:
    lower = Layer.of(
        folder("./"),
        folder("./bin"),
        script("./bin/hello", "echo hello"),
        Entry("etc/deep/file", b"old"),
        Entry("etc/gone", b"x"),
        Entry("etc/whole/a", b"a"),
        link("usr/bin", "../bin"),
        link("abs", "/etc/deep"),
        link("bin/again", "bin/hello", tarfile.LNKTYPE),
        compression=compression,
    )
    upper = Layer.of(
        Entry("etc/.wh.gone"),
        Entry("etc/deep/file", b"new"),
        Entry("etc/whole/.wh..wh..opq"),
        Entry("etc/whole/b", b"b"),
        # Through a link that stays inside.
        script("usr/bin/more", "echo more"),
        compression=compression,
    )
    root = tmp_path / "root"
    root.mkdir()
    await in_process(files_of(tmp_path, [lower, upper]), root, 100 * MIB)
    assert tree(root) == {
        "abs": "-> etc/deep",
        "bin": "/",
        "bin/again": "#!/bin/sh\necho hello\n",
        "bin/hello": "#!/bin/sh\necho hello\n",
        "bin/more": "#!/bin/sh\necho more\n",
        "etc": "/",
        "etc/deep": "/",
        "etc/deep/file": "new",
        "etc/whole": "/",
        "etc/whole/b": "b",
        "usr": "/",
        "usr/bin": "-> ../bin",
    }
    assert (root / "bin/hello").stat().st_mode & 0o7777 == 0o755
    assert (root / "etc/deep/file").stat().st_mode & 0o7777 == 0o644
    assert (root / "etc/deep/file").stat().st_mtime == 1_700_000_000
    assert (root / "bin/again").stat().st_ino == (root / "bin/hello").stat().st_ino


def test_whiteouts_hide_only_what_is_below(tmp_path: Path) -> None:
    lower = Layer.of(Entry("d/old", b"o"), Entry("d/sub/old", b"o"), Entry("e/old", b"o"), Entry("f", b"f"))
    upper = Layer.of(
        Entry("d/sub/new", b"n"),
        Entry("d/.wh..wh..opq"),
        folder("e"),
        Entry("e/new", b"n"),
        Entry(".wh.e"),
        Entry("f", b"mine"),
        Entry(".wh.f"),
        Entry(".wh.never"),
        Entry(".wh..wh.plnk"),
    )
    assert tree(unpacked(tmp_path, lower, upper)) == {
        "d": "/",
        "d/sub": "/",
        "d/sub/new": "n",
        "e": "/",
        "e/new": "n",
        "f": "mine",
    }


def test_a_folder_becomes_a_file_and_a_link_a_folder(tmp_path: Path) -> None:
    lower = Layer.of(Entry("a/b", b"x"), link("l", "a"), Entry("f", b"x"))
    upper = Layer.of(Entry("a", b"file"), folder("l"), Entry("l/x", b"y"), folder("f"))
    assert tree(unpacked(tmp_path, lower, upper)) == {"a": "file", "f": "/", "l": "/", "l/x": "y"}


BAD = {
    "traversal": ([Entry("../evil", b"x")], "leads out"),
    "traversal inside": ([Entry("a/../../evil", b"x")], "leads out"),
    "absolute": ([Entry("/etc/evil", b"x")], "leads out"),
    "link out": ([link("l", "../../../../../../etc/passwd")], "is a link that leads out of the image"),
    "link out by folders": ([link("a/b/l", "../../../x")], "is a link that leads out of the image"),
    "link out by another link": (
        [folder("x/y/z"), link("x/y/z/up", "/"), link("m", "x/y/z/up/../..")],
        "is a link that leads out of the image",
    ),
    "link that leads out later": (
        [folder("a/b"), link("l", "a/b/../../ok"), Entry("a/.wh.b"), link("c/top", "/"), link("a/b", "../c/top")],
        "is a link that leads out of the image",
    ),
    "link that leads out later, named to change a terminal": (
        [folder("a/b"), link("\x1b[2J", "a/b/../../ok"), Entry("a/.wh.b"), link("c/top", "/"), link("a/b", "../c/top")],
        r"'\\x1b\[2J' is a link that leads out of the image",
    ),
    "hard link out": ([link("h", "../../etc/passwd", tarfile.LNKTYPE)], "leads out"),
    "hard link to a link": ([link("l", "x"), link("h", "l", tarfile.LNKTYPE)], "not a file of the image"),
    "hard link to nothing": ([link("h", "nothing", tarfile.LNKTYPE)], "not a file of the image"),
    "hard link to a folder": ([folder("d"), link("h", "d", tarfile.LNKTYPE)], "not a file of the image"),
    "device": ([Entry("dev/sda", kind=tarfile.BLKTYPE)], "is a device"),
    "character device": ([Entry("dev/null", kind=tarfile.CHRTYPE)], "is a device"),
    "pipe": ([Entry("pipe", kind=tarfile.FIFOTYPE)], "is a pipe"),
    "setuid": ([Entry("su", b"x", mode=0o4755)], "setuid"),
    "setgid": ([Entry("sg", b"x", mode=0o2755)], "setuid or setgid"),
    "case": ([Entry("README", b"x"), Entry("readme", b"y")], "same name"),
    "case of folders": ([Entry("Lib/a", b"x"), Entry("lib/b", b"y")], "same name"),
    "case of a folder that a link names first": ([link("l", "Lib"), Entry("l/a", b"x"), Entry("lib/b", b"y")], "same name"),
    "composition": ([Entry("e\u0301", b"x"), Entry("\u00e9", b"y")], "same name"),
    "whiteout of the parent": ([Entry("a/.wh..")], "hides nothing"),
    "whiteout of two": ([Entry("a/.wh...")], "hides nothing"),
    "long name": ([Entry("a" * 256, b"x")], "not a usable path"),
    "deep": ([Entry("/".join(["d"] * 129), b"x")], "not a usable path"),
    "file as a folder": ([Entry("f", b"x"), Entry("f/g", b"y")], "is not a folder"),
    "sparse": ([Entry("s", b"x", pax={"GNU.sparse.size": "9999", "GNU.sparse.map": "0,1"})], "sparse"),
    "header": ([Entry("s", b"x", pax={"comment": "x" * 2 * MIB})], "headers of an entry"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_an_image_may_not_have(tmp_path: Path, what: str) -> None:
    entries, words = BAD[what]
    (tmp_path / "evil").write_text("untouched")
    with pytest.raises(UnpackError, match=words):
        unpacked(tmp_path, Layer.of(*entries))
    assert (tmp_path / "evil").read_text() == "untouched"


def test_an_invalid_name_is_refused(tmp_path: Path) -> None:
    content = tar([Entry("name-XX", b"x")]).replace(b"name-XX", b"name-\xff\xfe")
    block = bytearray(content)
    header = block[:512]
    total = sum(header[:148]) + 8 * 32 + sum(header[156:])
    block[148:156] = f"{total:06o}\0 ".encode()
    with pytest.raises(UnpackError, match="not UTF-8"):
        unpacked(tmp_path, Layer.packed(bytes(block)))


def test_a_case_that_is_free_again_can_be_used(tmp_path: Path) -> None:
    lower = Layer.of(Entry("README", b"x"), Entry("Lib/a", b"a"))
    upper = Layer.of(Entry(".wh.README"), Entry("readme", b"y"), Entry(".wh.Lib"), Entry("lib/b", b"b"))
    assert tree(unpacked(tmp_path, lower, upper)) == {"readme": "y", "lib": "/", "lib/b": "b"}


def test_nothing_is_written_through_a_link_that_leads_out(tmp_path: Path) -> None:
    """The link itself is refused before anything follows it, in the same layer or in a later one."""
    outside = tmp_path / "outside"
    outside.mkdir()
    parts = (Layer.of(link("d", str(outside))), Layer.of(Entry("d/evil", b"x")))
    root = unpacked(tmp_path, *parts[:1])
    # An absolute target is one in the image.
    assert (root / "d").resolve().is_relative_to(root)
    assert list(outside.iterdir()) == []


def test_bytes_entries_and_ratio_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, (part, limits, words) in enumerate(
        [
            (Layer.of(Entry("big", os.urandom(2 * MIB))), {"bytes": MIB}, "larger than imagePulls.maxBytes"),
            (Layer.of(*(Entry(f"f{one}") for one in range(30))), {"entries": 20}, "entries"),
        ]
    ):
        here = tmp_path / str(number)
        here.mkdir()
        with pytest.raises(UnpackError, match=words):
            unpacked(here, part, **limits)
    monkeypatch.setattr(layers, "RATIO_FREE", MIB)
    monkeypatch.setattr(layers, "RATIO", 20)
    for compression in ("gzip", "zstd"):
        here = tmp_path / compression
        here.mkdir()
        with pytest.raises(UnpackError, match="20 times as large"):
            unpacked(here, Layer.of(Entry("zeros", bytes(30 * MIB)), compression=compression))
        # The rest of the bomb was not written.
        assert sum(file.stat().st_size for file in (here / "root").iterdir()) < 20 * MIB


def test_folders_without_an_entry_of_their_own_count(tmp_path: Path) -> None:
    deep = "/".join("d" * 30)
    with pytest.raises(UnpackError, match="entries"):
        unpacked(tmp_path, Layer.of(*(Entry(f"{one}/{deep}/f") for one in range(5))), entries=100)
    assert sum(1 for _ in (tmp_path / "root").rglob("*")) <= 100


@pytest.mark.parametrize("prefix", [f"{'d' * 200}/", "l/"], ids=["in full", "by a link"])
def test_all_paths_together_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    """They are in memory until the image is unpacked, and a million of 4 KiB are more than a Mac has."""
    monkeypatch.setattr(unpacking_process, "MAX_NAMES", 50_000)
    few, many = tmp_path / "few", tmp_path / "many"
    for here in (few, many):
        here.mkdir()
    lower = Layer.of(folder("d" * 200), link("l", "d" * 200))
    uppers = [Layer.of(*(Entry(f"{prefix}{part}{one}") for one in range(100))) for part in "abc"]
    unpacked(few, lower, *uppers[:2])
    with pytest.raises(UnpackError, match="paths of the image have more than 50000 characters"):
        unpacked(many, lower, *uppers)


def test_folders_that_are_remembered_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking_process, "MAX_KNOWN", 10)
    tree = unpacking_process.Tree(os.path.realpath(tmp_path), Budget(MIB, 1000))
    for number in range(25):
        assert tree.folder(("a", str(number))) == f"{tree.root}/a/{number}"
        assert len(tree.folders) <= 10
    assert len(os.listdir(tmp_path / "a")) == 25


@pytest.mark.parametrize("named", [False, True], ids=["by a file in them", "by entries of their own"])
def test_links_do_not_make_folders_deeper_than_entries_may(tmp_path: Path, named: bool) -> None:
    """What is deeper than Python calls functions could not be deleted any more."""
    half = "/".join("d" * 80)
    below = [folder("/".join("l" + "d" * depth)) for depth in range(1, 81)] if named else [Entry(f"l/{half}/f")]
    with pytest.raises(UnpackError, match="folders deep"):
        unpacked(tmp_path, Layer.of(Entry(f"{half}/f"), link("l", half), *below))


def test_global_headers_are_bounded(tmp_path: Path) -> None:
    output = io.BytesIO()
    for number in range(200):
        with tarfile.open(fileobj=(one := io.BytesIO()), mode="w", pax_headers={f"note{number}": "x" * 100}) as archive:
            archive.addfile(tarfile.TarInfo(f"f{number}"))
            output.write(one.getvalue()[: archive.offset])
    output.write(bytes(1024))
    with pytest.raises(UnpackError, match="global headers"):
        unpacked(tmp_path, Layer.packed(output.getvalue()))


def test_some_of_the_disk_stays_free(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    files = files_of(tmp_path, [Layer.of(Entry("f", b"x"))])
    with pytest.raises(UnpackError, match="the disk is full"):
        unpack(files, root, Budget(MIB, 10), spare=2**60)
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_entries_without_content_fill_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A file of one byte takes a whole block, and a million of them take gigabytes."""
    count, free, spare = 2000, 4 * MIB, MIB
    root = tmp_path / "root"
    root.mkdir()

    def disk(path: str) -> SimpleNamespace:
        """As if each entry took a block of 4 KiB."""
        return SimpleNamespace(f_frsize=4096, f_bavail=free // 4096 - len(os.listdir(root)))

    monkeypatch.setattr(os, "statvfs", disk)
    monkeypatch.setattr(unpacking_process, "ROOM_STEP", 256 * 1024)
    kinds: dict[str, Callable[[str], Entry]] = {"file": Entry, "folder": folder, "link": lambda name: link(name, ".")}
    made = kinds[kind]
    files = files_of(tmp_path, [Layer.of(*(made(str(number)) for number in range(count)), compression="")])
    with pytest.raises(UnpackError, match="the disk is full"):
        unpack(files, root, Budget(100 * MIB, count), spare=spare)
    assert free - 4096 * len(os.listdir(root)) >= spare


def test_a_window_of_zstd_is_bounded(tmp_path: Path) -> None:
    from backports import zstd

    names = zstd.CompressionParameter
    options = {int(names.window_log): 28, int(names.enable_long_distance_matching): 1}
    compressor = zstd.ZstdCompressor(options=options)
    content = tar([Entry("f", b"x")])
    blob = compressor.compress(content) + compressor.flush()
    with pytest.raises(zstd.ZstdError):
        unpacked(tmp_path, Layer(blob, content, "x+zstd"))


def test_content_with_another_digest_is_refused(tmp_path: Path) -> None:
    part = Layer.of(Entry("f", b"x"))
    with pytest.raises(UnpackError, match="does not have the digest in the image's configuration"):
        unpacked(tmp_path, Layer(part.blob, tar([Entry("f", b"y")]), part.media))


@pytest.mark.parametrize("damage", ["cut", "garbage", "not gzip"])
async def test_a_damaged_layer_is_an_error_of_the_image(tmp_path: Path, damage: str) -> None:
    content = tar([Entry("f", os.urandom(MIB))])
    blob = {"cut": gzip.compress(content)[: -MIB // 2], "garbage": gzip.compress(os.urandom(4096)), "not gzip": content}[damage]
    root = tmp_path / "root"
    root.mkdir()
    with pytest.raises(PullError, match="cannot unpack the image"):
        await in_process(files_of(tmp_path, [Layer(blob, content, "x+gzip")]), root, 100 * MIB)


async def test_unpacking_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    fifo = tmp_path / "layer"
    os.mkfifo(fifo)
    root = tmp_path / "root"
    root.mkdir()
    with pytest.raises(PullError, match=r"takes too long: the process did not answer within 0.2 s"):
        await in_process([(fifo, "", "sha256:x")], root, MIB, seconds=0.2)


async def test_a_header_that_takes_hours_to_read_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's library searches it in the square of its length, unless it is new; meanwhile, others wait for their images."""
    monkeypatch.setattr(unpacking, "HEADER_SECONDS", 0.5)
    numbers = b"1" * 900_000
    extended = tarfile.TarInfo("x")
    extended.type, extended.size = tarfile.XHDTYPE, len(numbers)
    content = extended.tobuf(format=tarfile.USTAR_FORMAT) + numbers + b"\0" * (-len(numbers) % 512) + tar([Entry("f", b"x")])
    root = tmp_path / "root"
    root.mkdir()
    with pytest.raises(PullError, match=r"^cannot unpack the image: (the process was killed by signal|layer 0: )"):
        await in_process(files_of(tmp_path, [Layer.packed(content)]), root, 100 * MIB, seconds=ASYNC_WAIT_SECONDS)


async def test_unpacking_ends_with_a_kubelet_that_is_killed(tmp_path: Path) -> None:
    fifo = tmp_path / "layer"
    os.mkfifo(fifo)
    (tmp_path / "root").mkdir()
    order = f"unpack([(Path({str(fifo)!r}), '', 'x')], Path({str(tmp_path / 'root')!r}), 2**20)"
    words = f"import asyncio; from pathlib import Path; from {in_process.__module__} import unpack; asyncio.run({order})"
    kubelet = await asyncio.create_subprocess_exec(sys.executable, "-c", words)
    try:
        # Opened when the process that unpacks has opened it too.
        writer = await asyncio.wait_for(asyncio.to_thread(os.open, fifo, os.O_WRONLY), ASYNC_WAIT_SECONDS)
    finally:
        kubelet.kill()
        await kubelet.wait()
    gone, ended = select.poll(), select.POLLERR | select.POLLHUP
    # Without an event that is asked for, macOS reports no hang-up.
    gone.register(writer, select.POLLOUT)
    await until_async(lambda: any(event & ended for _, event in gone.poll(0)), "the process that unpacks has ended")
    os.close(writer)


def test_many_chained_headers_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tarfile reads extended headers by recursion."""
    one = io.BytesIO()
    with tarfile.open(fileobj=one, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "x"}) as archive:
        archive.addfile(tarfile.TarInfo("f"))
    header = one.getvalue()[:1024]
    content = header * 5000 + bytes(1024)
    root = tmp_path / "root"
    root.mkdir()
    with pytest.raises((UnpackError, RecursionError)):
        unpack(files_of(tmp_path, [Layer.packed(content)]), root, Budget(MIB * 100, 10))
    assert tree(root) == {}


def test_what_is_unpacked_belongs_to_the_kubelet_and_is_readable(tmp_path: Path) -> None:
    info = tarfile.TarInfo("f")
    info.uid, info.gid, info.mode, info.size = 12345, 12345, 0o000, 1
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w") as archive:
        archive.addfile(info, io.BytesIO(b"x"))
        closed = tarfile.TarInfo("d")
        closed.type, closed.mode = tarfile.DIRTYPE, 0o7000
        archive.addfile(closed)
    before = os.umask(0o022)
    try:
        root = unpacked(tmp_path, Layer.packed(output.getvalue()))
    finally:
        os.umask(before)
    for name, mode in (("f", 0o644), ("d", 0o755)):
        about = (root / name).stat()
        assert (about.st_uid, stat.S_IMODE(about.st_mode)) == (os.geteuid(), mode)


def test_the_process_says_what_is_wrong(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    order = (
        '{"layers": [["/no/such/file", "gzip", "x"]], "target": "/no/such/folder", "bytes": 10, "spare": 0, "headerSeconds": 5}'
    )
    monkeypatch.setattr(sys, "stdin", io.StringIO(order))
    before = os.umask(0o022)
    os.umask(before)
    try:
        assert unpacking_process.main() == 1
    finally:
        os.umask(before)
    assert "No such file" in capsys.readouterr().out


async def test_an_image_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, really, rename = set[int](), os.fsync, os.rename
    missing: list[Path] = []

    def fsync(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        really(descriptor)

    def look(source: Path, target: Path) -> None:
        missing.extend(one for one in (source, *source.rglob("*")) if not one.is_symlink() and one.stat().st_ino not in synced)
        rename(source, target)

    store = Store(tmp_path / "images")
    store.open()
    parts = files_of(tmp_path, [Layer.of(Entry("bin/deep/file", b"x"), Entry("empty", b""), link("out", "bin"))])
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", look)
    async with store.staging() as staged:
        layers = [(str(file), *rest) for file, *rest in parts]
        order = {"layers": layers, "target": str(staged / "rootfs"), "bytes": MIB, "spare": 0, "headerSeconds": 5}
        monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(order)))
        monkeypatch.setattr(sys, "stdout", io.StringIO())
        mask = os.umask(0o022)
        try:
            assert unpacking_process.main() == 0
        finally:
            os.umask(mask)
        store.add(staged, "a" * 64, 1, {})
    assert missing == [] and (store.trees / ("a" * 64) / "rootfs" / "bin" / "deep" / "file").exists()
