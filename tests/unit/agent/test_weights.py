"""What the agent does with its model store: real files, as pods leave them, and ModelCaches as the API server has them."""

import asyncio
import hashlib
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

import pytest
from thunderfleet_agent.weights import keeper as keepers
from thunderfleet_agent.weights.keeper import Keeper
from thunderfleet_agent.weights.progress import Rate
from thunderfleet_agent.weights.wanted import Wanted, wanted_of
from thunderfleet_crds.kinds.modelcache import ModelCache
from thunderfleet_crds.names import API_VERSION
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import CopyPhase, CopySource
from thunderfleet_crds.weights.copies import CopyState
from thunderfleet_lib.kube import Kube
from thunderfleet_lib.modelstore import adoption
from thunderfleet_lib.modelstore.manifest import FileEntry, Manifest
from thunderfleet_lib.modelstore.parts import PART_FILE

from tests.support.models.copies import fill

Json = dict[str, Any]
UID = "11111111-2222-3333-4444-555555555555"


def contents(name: str) -> dict[str, bytes]:
    return {"config.json": b"{}", "model.safetensors": name.encode() * 1000}


def manifest(name: str) -> Manifest:
    files = (FileEntry(path, len(data), sha256=hashlib.sha256(data).hexdigest()) for path, data in contents(name).items())
    return Manifest(f"owner/{name}", hashlib.sha1(name.encode()).hexdigest(), tuple(files))


def cache(name: str, source: str = "Hub", uid: str = UID, namespace: str = "ns") -> Json:
    wanted = manifest(name)
    status = {
        "commit": wanted.commit,
        "manifest": wanted.digest,
        "bytes": wanted.total_bytes,
        "assignments": [{"node": "mac", "source": source}],
    }
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": uid},
        "spec": {"repository": f"owner/{name}"},
        "status": status,
    }


class Mac:
    """A model store and its keeper."""

    def __init__(self, folder: Path) -> None:
        self.published = 0
        self.used: list[str] = []
        self.now = 0.0
        self.keeper = Keeper(
            cast(Kube, None), "mac", folder, self._changed, lambda: None, lambda: self.used, clock=lambda: self.now
        )
        self.store = self.keeper.store
        self.store.prepare()

    def _changed(self) -> None:
        self.published += 1

    def wants(self, *caches: Json) -> None:
        self.keeper._caches.items = {f"{one['metadata']['namespace']}/{one['metadata']['name']}": one for one in caches}

    def round(self) -> dict[str, tuple[CopyPhase, str | None]]:
        """One round; by repository, what the NodeProfile shows then."""
        self.now += 10
        asyncio.run(self.keeper._round())
        return {copy.repository.removeprefix("owner/"): (copy.phase, copy.reason) for copy in self.keeper.copies}

    def download(self, name: str, uid: str = UID, **changed: bytes) -> Path:
        """What a pod leaves in its staging folder."""
        folder = self.store.layout.staged(uid)
        folder.mkdir(exist_ok=True)
        (folder / "manifest.json").write_bytes(manifest(name).canonical)
        for entry in manifest(name).files:
            (folder / entry.blob).write_bytes(changed.get(entry.path.partition(".")[0], contents(name)[entry.path]))
        return folder


def with_token(cache: Json, secret: str | None = "hub") -> Json:
    """The cache with a Secret whose token the hub has accepted."""
    return {**cache, "status": {**cache["status"], "tokenAccepted": secret}}


def test_what_the_hub_lists_for_a_token_is_no_model_for_every_namespace(mac: Mac) -> None:
    mine = with_token(cache("tiny"))
    mac.wants(mine)
    path = str(mac.store.layout.snapshot("owner/tiny", manifest("tiny").commit))
    mac.download("tiny")
    mac.round()
    assert Path(path).is_dir() and mac.keeper.restricted == {path}
    # It is kept when no ModelCache is left, also by the next agent.
    mac.wants()
    mac.round()
    assert mac.keeper.restricted == {path}
    assert Mac(mac.store.root).keeper.restricted == {path}
    # The hub has listed the same for another namespace without a token.
    mac.wants(mine, cache("tiny", uid="other", namespace="other"))
    mac.round()
    assert mac.keeper.restricted == frozenset()
    mac.wants(mine, with_token(cache("tiny", uid="other", namespace="other")))
    mac.round()
    assert mac.keeper.restricted == {path}
    mac.wants()
    mac.store.remove(manifest("tiny").digest)
    mac.round()
    assert mac.keeper.restricted == frozenset()
    assert list(mac.store.layout.manifests.iterdir()) == []


def test_a_model_is_restricted_before_its_folder_appears(mac: Mac, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy from another Mac makes it appear at any time after the round that wants it."""
    mac.wants(with_token(cache("tiny", source="Peer")))
    peers = Peers(mac, "tiny")
    mac.keeper.peers = peers
    seen: list[bool] = []
    real = peers.want

    def want(models: Collection[Wanted]) -> None:
        seen.extend(mac.store.layout.restricted(one.digest).exists() for one in models)
        real(models)

    monkeypatch.setattr(peers, "want", want)
    mac.round()
    assert seen == [True]


class Peers:
    """Copies from another Mac, as the keeper sees them: a model arrives as soon as it is wanted."""

    def __init__(self, mac: Mac, name: str, *, arrives: bool = True) -> None:
        self.mac, self.name, self.arrives = mac, name, arrives
        self.wanted: set[str] = set()

    def want(self, models: Collection[Wanted]) -> None:
        self.wanted = {one.digest for one in models}
        if self.wanted and self.arrives:
            fill(self.mac.store, manifest(self.name), contents(self.name))

    def states(self) -> dict[str, CopyState]:
        state = CopyState(source=CopySource.PEER, peer="mac-2", link="cable")
        return dict.fromkeys(self.wanted, state)


@pytest.fixture
def mac(tmp_path: Path) -> Mac:
    return Mac(tmp_path / "store")


def test_a_download_becomes_a_model(mac: Mac) -> None:
    mac.wants(cache("tiny"))
    assert mac.round() == {"tiny": (CopyPhase.WAITING, None)}
    mac.download("tiny")
    assert mac.round() == {"tiny": (CopyPhase.COMPLETE, None)}
    folder = mac.store.layout.snapshot("owner/tiny", manifest("tiny").commit)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == contents("tiny")
    published = mac.published
    assert mac.round() == {"tiny": (CopyPhase.COMPLETE, None)}
    assert mac.published == published


def test_a_complete_model_says_where_it_came_from(mac: Mac) -> None:
    mac.wants(cache("tiny"))
    mac.download("tiny")
    mac.round()
    assert [(copy.source, copy.peer, copy.link) for copy in mac.keeper.copies] == [(CopySource.HUB, None, None)]
    mac.wants(cache("copied", source="Peer"))
    digest = manifest("copied").digest
    mac.keeper.peers = peers = Peers(mac, "copied")
    mac.round()
    assert peers.wanted == {digest}
    # The next round finds the files, and the transfer is forgotten.
    mac.round()
    assert peers.wanted == set()
    mac.round()
    copied = next(copy for copy in mac.keeper.copies if copy.manifest == digest)
    assert (copied.phase, copied.source, copied.peer, copied.link) == (CopyPhase.COMPLETE, CopySource.PEER, "mac-2", "cable")


def test_a_deployment_that_is_deleted_during_the_copy_ends_it_and_leaves_no_model(mac: Mac) -> None:
    mac.keeper.peers = peers = Peers(mac, "copied", arrives=False)
    mac.wants(cache("copied", source="Peer"))
    mac.round()
    assert peers.wanted == {manifest("copied").digest}
    # Its ModelCache goes with it: first it has a deletionTimestamp, then it is gone.
    ending = cache("copied", source="Peer")
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    for caches in ((ending,), ()):
        mac.wants(*caches)
        assert mac.round() == {}
        assert peers.wanted == set()
    assert not mac.store.layout.snapshot("owner/copied", manifest("copied").commit).exists()


def test_progress_counts_what_is_staged_and_is_no_model_yet(mac: Mac) -> None:
    mac.wants(cache("tiny"))
    folder = mac.download("tiny")
    weights = next(entry for entry in manifest("tiny").files if entry.path == "model.safetensors")
    os.rename(folder / weights.blob, folder / f"{weights.blob}.incomplete")
    assert mac.round()["tiny"][0] in (CopyPhase.COPYING, CopyPhase.CHECKING)
    assert mac.keeper.copies[0].source is CopySource.HUB
    assert not mac.store.layout.snapshot("owner/tiny", manifest("tiny").commit).exists()


def arrives(mac: Mac, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A large file of which half has arrived, after a round."""
    monkeypatch.setattr(adoption, "LEAST_BYTES", 1000)
    monkeypatch.setattr(adoption, "CLONED_SHARE", 0.5)
    mac.wants(cache("tiny"))
    folder = mac.download("tiny")
    weights = next(entry for entry in manifest("tiny").files if entry.path == "model.safetensors")
    (folder / weights.blob).unlink()
    path = folder / f"{weights.blob}.incomplete"
    path.write_bytes(contents("tiny")["model.safetensors"][:2000])
    assert mac.round()["tiny"][0] is CopyPhase.COPYING
    assert 2002 in [copy.bytes_done for copy in mac.keeper.copies]
    return path


def test_a_large_file_is_hashed_while_it_arrives(mac: Mac, monkeypatch: pytest.MonkeyPatch) -> None:
    path = arrives(mac, monkeypatch)
    assert len(list(mac.store.layout.temporary.iterdir())) == 1
    path.write_bytes(contents("tiny")["model.safetensors"])
    os.replace(path, path.with_suffix(""))
    monkeypatch.setattr(mac.store, "adopt", lambda *_: None)
    assert mac.round() == {"tiny": (CopyPhase.COMPLETE, None)}
    assert list(mac.store.layout.temporary.iterdir()) == []


def test_the_disk_of_a_copy_is_given_back_before_a_model_is_removed(mac: Mac, monkeypatch: pytest.MonkeyPatch) -> None:
    mac.wants(cache("old"))
    mac.download("old")
    mac.round()
    arrives(mac, monkeypatch)
    copies = mac.store.layout.temporary
    needed = keepers.RESERVE_BYTES + manifest("tiny").total_bytes
    monkeypatch.setattr(mac.store, "free_bytes", lambda: 0 if list(copies.iterdir()) else needed)
    assert set(mac.round()) == {"old", "tiny"}
    assert list(copies.iterdir()) == []


def test_a_copy_goes_with_its_cache(mac: Mac, monkeypatch: pytest.MonkeyPatch) -> None:
    arrives(mac, monkeypatch)
    mac.wants()
    mac.round()
    assert list(mac.store.layout.temporary.iterdir()) == []


def test_wrong_bytes_are_removed_and_reported_until_right_ones_come(mac: Mac) -> None:
    mac.wants(cache("tiny"))
    folder = mac.download("tiny", model=b"y" * 4000)
    assert mac.round()["tiny"][1] == Reason.WRONG_BYTES
    assert len(list(folder.iterdir())) == 1
    mac.download("tiny")
    assert mac.round() == {"tiny": (CopyPhase.COMPLETE, None)}


def test_a_forged_manifest_is_not_used(mac: Mac) -> None:
    mac.wants(cache("tiny"))
    folder = mac.download("tiny")
    (folder / "manifest.json").write_bytes(manifest("other").canonical)
    assert mac.round() == {"tiny": (CopyPhase.WAITING, None)}
    assert mac.store.kept() == ()


def test_what_no_cache_wants_stays_until_the_disk_is_needed(mac: Mac, monkeypatch: pytest.MonkeyPatch) -> None:
    for age, name in enumerate(("old", "served", "young")):
        mac.wants(cache(name))
        mac.download(name)
        mac.round()
        os.utime(mac.store.layout.manifest(manifest(name).digest), (age, age))
    own = mac.store.root / "models--user--own" / "snapshots" / ("e" * 40)
    own.mkdir(parents=True)
    (own / "config.json").write_text("{}")
    mac.used = [str(mac.store.layout.snapshot("owner/served", manifest("served").commit))]
    mac.wants()
    assert set(mac.round()) == {"old", "served", "young"}
    # One byte is missing for the next model.
    monkeypatch.setattr(mac.store, "free_bytes", lambda: keepers.RESERVE_BYTES + manifest("new").total_bytes - 1)
    mac.wants(cache("new"))
    mac.download("new")
    monkeypatch.setattr(mac.keeper, "_staged_bytes", lambda one, wanted: 0)
    assert set(mac.round()) == {"served", "young", "new"}
    monkeypatch.setattr(mac.store, "free_bytes", lambda: 0)
    mac.wants(cache("new"), cache("newer", uid=UID.replace("1", "9")))
    mac.download("newer", uid=UID.replace("1", "9"))
    assert set(mac.round()) == {"served", "new", "newer"}
    assert (own / "config.json").exists()


def test_a_model_that_a_deployment_names_is_kept_even_if_nothing_runs(mac: Mac, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("named", "other"):
        mac.wants(cache(name))
        mac.download(name)
        mac.round()
    asleep = cache("named", uid=UID.replace("1", "8"))
    owner = {"apiVersion": API_VERSION, "kind": "ModelDeployment", "name": "chat", "uid": "u", "controller": True}
    asleep["metadata"]["ownerReferences"] = [owner]
    asleep["status"]["assignments"] = []
    mac.wants(asleep)
    assert set(mac.round()) == {"named", "other"}
    assert {copy.repository: copy.used_at is not None for copy in mac.keeper.copies} == {
        "owner/named": False,
        "owner/other": True,
    }
    monkeypatch.setattr(mac.store, "free_bytes", lambda: 0)
    mac.wants(asleep, cache("new"))
    mac.download("new")
    assert set(mac.round()) == {"named", "new"}
    # Its ModelDeployment is deleted, and another model needs the disk.
    mac.wants(cache("newer"))
    mac.download("newer")
    assert set(mac.round()) == {"newer"}


def test_the_time_of_the_last_use_is_kept(mac: Mac) -> None:
    mac.wants(cache("tiny"))
    mac.download("tiny")
    mac.round()
    path = mac.store.layout.manifest(manifest("tiny").digest)
    os.utime(path, (1, 1))
    # It is wanted all the time: now and then that is noted, and not in every round.
    mac.round()
    assert path.stat().st_mtime == 1
    mac.now += keepers.TOUCH_SECONDS
    mac.round()
    assert path.stat().st_mtime > 1
    os.utime(path, (1, 1))
    mac.wants()
    mac.round()
    used = path.stat().st_mtime
    assert used > 1
    mac.now += 2 * keepers.TOUCH_SECONDS
    mac.round()
    assert path.stat().st_mtime == used


def test_caches_may_change_while_a_thread_reads_them(mac: Mac, monkeypatch: pytest.MonkeyPatch) -> None:
    mac.wants(cache("tiny"), cache("other"))
    load = ModelCache.load

    def changing(item: Any) -> ModelCache:
        mac.keeper._caches.items[f"ns/new-{len(mac.keeper._caches.items)}"] = item
        return load(item)

    monkeypatch.setattr(ModelCache, "load", changing)
    assert set(mac.keeper._wanted()) == {manifest("tiny").digest, manifest("other").digest}


def test_two_caches_share_one_model_and_each_has_its_download(mac: Mac) -> None:
    other = UID.replace("1", "9")
    both = [cache("tiny", "Peer"), cache("tiny", "Hub", uid=other, namespace="other")]
    (found,) = wanted_of([ModelCache.load(one) for one in both], "mac").values()
    assert (found.source, found.downloads) == (CopySource.HUB, (other,))
    mac.wants(*both)
    mac.download("tiny", uid=other)
    assert mac.round() == {"tiny": (CopyPhase.COMPLETE, None)}
    assert len(mac.store.kept()) == 1


def test_staging_folders_of_caches_that_are_gone_are_removed(mac: Mac) -> None:
    mac.wants(cache("tiny"))
    mac.download("tiny", uid="gone")
    mac.round()
    assert not mac.store.layout.staged("gone").exists()


def test_rates_and_times_left() -> None:
    rate = Rate()
    assert rate.bytes_per_second is None and rate.seconds_left(100) is None
    for second in range(40):
        rate.add(float(second), second * 10)
    assert rate.bytes_per_second == 10
    assert rate.seconds_left(490) == 10
    # Bytes that were refused start again.
    rate.add(41.0, 0)
    assert rate.bytes_per_second is None


# --- parts of a model ------------------------------------------------------------------------------------------------


def of_part(name: str, files: str, layers: str, **about: str) -> Json:
    """A ModelCache of which this Mac shall hold some files."""
    one = cache(name, **about)
    one["status"]["assignments"][0] |= {"files": files, "layers": layers}
    weights = [{"file": 1, "bytes": manifest(name).files[1].size, "layers": "2-3"}]
    return {**one, "status": {**one["status"], "weightFiles": weights}}


def test_a_part_is_shown_with_its_layers_and_is_no_model(mac: Mac) -> None:
    mac.wants(of_part("tiny", "0", "0-1"))
    mac.download("tiny")
    assert mac.round() == {"tiny": (CopyPhase.PART, None)}
    (copy,) = mac.keeper.copies
    size = len(contents("tiny")["config.json"])
    assert (copy.layers, copy.bytes, copy.bytes_done) == ("0-1", size, size)
    assert not mac.store.layout.snapshot("owner/tiny", manifest("tiny").commit).exists()
    folder = mac.store.layout.part(manifest("tiny").digest)
    assert {path.name for path in folder.iterdir()} == {"config.json", PART_FILE}
    assert mac.store.missing(manifest("tiny")), "the other file was left out"


def test_layers_that_are_needed_later_are_added_and_earlier_ones_stay_until_then(mac: Mac) -> None:
    mac.wants(of_part("tiny", "0", "0-1"))
    folder = mac.download("tiny")
    mac.round()
    (folder / manifest("tiny").files[1].blob).unlink()
    mac.wants(of_part("tiny", "0-1", "2-3"))
    assert mac.round()["tiny"][0] is CopyPhase.COPYING
    # A group that still serves layers 0 and 1 has them.
    assert mac.keeper.copies[0].layers == "0-1"
    mac.download("tiny")
    assert mac.round() == {"tiny": (CopyPhase.PART, None)}
    assert mac.keeper.copies[0].layers == "0-3"


def test_the_whole_model_and_a_part_of_it_are_both_there_if_both_are_wanted(mac: Mac) -> None:
    other = "22222222-2222-3333-4444-555555555555"
    mac.wants(of_part("tiny", "0", "0-1"), cache("tiny", uid=other, namespace="other"))
    mac.download("tiny")
    assert mac.round() == {"tiny": (CopyPhase.COMPLETE, None)}
    assert mac.keeper.copies[0].layers == "0-1"
    assert mac.keeper.copies[0].bytes == manifest("tiny").total_bytes
    assert mac.store.layout.snapshot("owner/tiny", manifest("tiny").commit).is_dir()


@pytest.mark.parametrize("files", ["0,77", "5"])
def test_files_that_the_model_does_not_have_are_refused(mac: Mac, files: str) -> None:
    mac.wants(of_part("tiny", files, "0-1"))
    mac.download("tiny")
    assert mac.round() == {"tiny": (CopyPhase.FAILED, Reason.DOWNLOAD_FAILED)}
    assert "has 2 files" in mac.keeper.copies[0].message


def test_a_part_without_a_file_that_it_had_is_fetched_again(mac: Mac) -> None:
    mac.wants(of_part("tiny", "0", "0-1"))
    mac.download("tiny")
    mac.round()
    # As a peer's request does that finds that it has changed.
    mac.store.layout.blob("owner/tiny", manifest("tiny").files[0].blob).unlink()
    assert mac.round()["tiny"][0] is not CopyPhase.PART
    assert mac.keeper.copies[0].layers is None
    mac.download("tiny")
    assert mac.round() == {"tiny": (CopyPhase.PART, None)}


@pytest.mark.parametrize("left", [b"", b"{"])
def test_a_damaged_manifest_is_replaced_by_that_of_a_download_or_of_another_mac(mac: Mac, left: bytes) -> None:
    """As a power failure leaves it. Without one, a copy would wait for ever."""
    mac.wants(cache("tiny"))
    mac.download("tiny")
    mac.round()
    path = mac.store.layout.manifest(manifest("tiny").digest)
    path.write_bytes(left)
    assert mac.round() == {"tiny": (CopyPhase.COMPLETE, None)}
    assert path.read_bytes() == manifest("tiny").canonical
    path.write_bytes(left)
    # What agents do with the manifest that another Mac gives them.
    mac.store.add_manifest(manifest("tiny"))
    mac.store.clear_staging(())
    mac.wants(cache("tiny", "Peer"))
    mac.keeper.peers = Peers(mac, "tiny", arrives=False)
    assert mac.round() == {"tiny": (CopyPhase.COMPLETE, None)}


@pytest.mark.parametrize("source", ["Hub", "Peer"])
def test_a_model_without_a_file_that_it_had_is_fetched_again(mac: Mac, source: str) -> None:
    mac.wants(cache("tiny"))
    mac.download("tiny")
    mac.round()
    weights = manifest("tiny").files[1]
    # As a peer's request does that finds that it has changed.
    mac.store.layout.blob("owner/tiny", weights.blob).unlink()
    mac.wants(cache("tiny", source))
    mac.keeper.peers = peers = Peers(mac, "tiny", arrives=False)
    assert mac.round()["tiny"][0] is not CopyPhase.COMPLETE
    assert (peers.wanted == {manifest("tiny").digest}) == (source == "Peer")
    if source == "Peer":
        fill(mac.store, manifest("tiny"), contents("tiny"))
    else:
        mac.download("tiny")
    assert mac.round() == {"tiny": (CopyPhase.COMPLETE, None)}
    folder = mac.store.layout.snapshot("owner/tiny", manifest("tiny").commit)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == contents("tiny")


def test_a_model_that_nothing_wants_is_no_source_without_all_of_its_files(mac: Mac) -> None:
    """Otherwise other Macs would wait for it, and nobody would ask the hub."""
    mac.wants(cache("tiny"))
    mac.download("tiny")
    mac.round()
    mac.wants()
    assert mac.round() == {"tiny": (CopyPhase.COMPLETE, None)}
    mac.store.layout.blob("owner/tiny", manifest("tiny").files[1].blob).unlink()
    assert mac.round() == {"tiny": (CopyPhase.WAITING, None)}


def test_a_link_to_a_file_that_is_no_longer_part_of_it_goes(mac: Mac) -> None:
    mac.wants(of_part("tiny", "0-1", "0-3"))
    mac.download("tiny")
    mac.round()
    folder = mac.store.layout.part(manifest("tiny").digest)
    weights = next(entry for entry in manifest("tiny").files if entry.path == "model.safetensors")
    # It is found damaged after its layers have moved to another Mac.
    mac.store.layout.blob("owner/tiny", weights.blob).unlink()
    mac.wants(of_part("tiny", "0", "0-1"))
    assert mac.round() == {"tiny": (CopyPhase.PART, None)}
    assert mac.keeper.copies[0].layers == "0-1"
    # A rank would fail on a link that leads nowhere.
    assert {path.name for path in folder.iterdir()} == {"config.json", PART_FILE}


def test_a_part_goes_with_its_model_unless_a_group_serves_it(mac: Mac, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("served", "old"):
        mac.wants(of_part(name, "0-1", "0-3"))
        mac.download(name)
        mac.round()
    mac.used = [str(mac.store.layout.part(manifest("served").digest))]
    mac.wants()
    assert mac.round() == {"served": (CopyPhase.PART, None), "old": (CopyPhase.PART, None)}
    monkeypatch.setattr(mac.store, "free_bytes", lambda: 0)
    mac.wants(of_part("new", "0-1", "0-3"))
    mac.download("new")
    mac.round()
    assert not mac.store.layout.part(manifest("old").digest).exists()
    assert mac.store.layout.part(manifest("served").digest).is_dir()


def test_a_damaged_description_of_a_part_is_written_again(mac: Mac) -> None:
    mac.wants(of_part("tiny", "0", "0-1"))
    mac.download("tiny")
    mac.round()
    marker = mac.store.layout.part(manifest("tiny").digest) / PART_FILE
    marker.write_text("")
    again = Mac(mac.store.root)
    again.wants(of_part("tiny", "0", "0-1"))
    assert again.round() == {"tiny": (CopyPhase.PART, None)}
    assert again.keeper.copies[0].layers == "0-1"
