"""Each pod has its own user: what another pod's processes reach, and when a user is free again."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_kubelet.containers import leftovers
from thunderfleet_kubelet.containers.folder import PodFolder
from thunderfleet_kubelet.pods.users import UNASSIGNED, NoFreeUser, UserPool
from thunderfleet_kubelet.shim import processes

from tests.support.pods import IDS, USERS, World, sh, state

Json = dict[str, Any]

as_root = pytest.mark.skipif(USERS is None, reason="only root can start programs as somebody else")

SHARED_FOLDERS = leftovers.SHARED_FOLDERS

TOKEN = {"name": "api", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
KEYS = {"name": "keys", "secret": {"secretName": "keys"}}
SHARED = {"name": "shared", "emptyDir": {}}
MOUNTS = [{"name": name, "mountPath": f"/{name}"} for name in ("api", "keys", "shared")]


def folders(root: Path, *names: str) -> list[PodFolder]:
    (root / "pods").mkdir(exist_ok=True)
    return [PodFolder(root / "pods" / name) for name in names]


# The pool


@as_root
def test_a_user_is_given_once_and_rests_as_long_as_possible(tmp_path: Path) -> None:
    pool = UserPool(range(70_000, 70_003))
    a, b, c, d = folders(tmp_path, "a", "b", "c", "d")
    assert [pool.take(one).id for one in (a, b, a) if pool.take(one)] == [70_000, 70_001, 70_000]  # type: ignore[union-attr]
    pool.release(a)
    assert pool.own(a) is None
    assert (pool.take(c), pool.take(d)) == (pool.of(c), pool.of(d))
    assert [pool.own(one) for one in (b, c, d)] == [70_001, 70_002, 70_000]
    with pytest.raises(NoFreeUser, match=r"all 3 users .* podUsers.count"):
        pool.take(a)


@as_root
def test_a_restarted_kubelet_finds_the_users(tmp_path: Path) -> None:
    first = UserPool(range(70_000, 70_010))
    a, b, old, other = folders(tmp_path, "a", "b", "old", "other")
    for folder in (a, b):
        user = first.take(folder)
        assert user is not None
        folder.create(user.id)
    # Of a kubelet that gave all pods one user.
    old.create(None)
    second = UserPool(range(70_001, 70_005))
    second.adopt([a, b, old])
    assert (second.own(a), second.own(b), second.own(old)) == (70_000, 70_001, None)
    assert second.of(old) is not None
    assert second.of(old).id == UNASSIGNED  # type: ignore[union-attr]
    assert 70_000 in second, "the user of a running pod belongs to pods, although podUsers has changed"
    taken = second.take(other)
    assert taken is not None
    assert taken.id == 70_002


def test_without_root_pods_have_no_users(tmp_path: Path) -> None:
    pool = UserPool(None)
    (a,) = folders(tmp_path, "a")
    assert pool.take(a) is None
    assert pool.of(a) is None
    assert 65_534 not in pool


# Another pod


SANDBOX = "/containers/main/sandbox/0"
PLACES = (
    *("", "/pod.json", "/containers", "/containers/main/0/spec.json", "/empty/shared", "/empty/shared/note"),
    *(SANDBOX, *(f"{SANDBOX}/{name}" for name in ("api/token", "keys/k", "note", "shared/note"))),
    *("/volumes/keys", "/volumes/api", "/logs/main/0.log", "/..", "/../../identity/client.pem"),
)
SPY = """
for place in {places}; do
  if cat "{pod}$place" || ls "{pod}$place"; then echo "read $place"; else echo "refused $place"; fi
done 2>/dev/null
grep -l {uid} /proc/[0-9]*/environ 2>/dev/null | grep -q . && echo "read environment"
for process in /proc/[0-9]*; do
  if kill -0 ${{process#/proc/}} && [ $(stat -c %u $process) != $(id -u) ]; then echo "read: may signal $process"; fi
done 2>/dev/null
echo done
"""


@pytest.mark.linux
@as_root
@pytest.mark.parametrize("context", [{}, {"runAsUser": 2001, "runAsGroup": 2001}])
async def test_a_pod_reaches_nothing_of_another_pod(world: World, context: Json) -> None:
    await world.boot()
    (world.root / "identity").mkdir(mode=0o700)
    world.api.add("secrets", "keys", {"k": "c2VjcmV0"})
    script = 'cd "$HOME"; umask 0; echo mine > note; echo mine > shared/note; cat api/token; exec sleep 600'
    two = [sh(script, volumeMounts=MOUNTS), {**sh("sleep 600", securityContext={"runAsUser": 2002}, volumeMounts=MOUNTS)}]
    two[1]["name"] = "second"
    world.api.add_pod("victim", {"volumes": [TOKEN, KEYS, SHARED], "containers": two})
    await world.phase("victim", "Running")
    await world.until(lambda: (world.folder("victim").empty("shared") / "note").exists())
    victim = world.api.pod("victim")["metadata"]["uid"]
    (world.root / "identity" / "client.pem").touch()
    places = " ".join(f"'{place}'" for place in PLACES)
    script = SPY.format(places=places, pod=world.folder("victim").path, uid=victim)
    world.api.add_pod("spy", {"containers": [sh(script, securityContext=context)]})
    await world.phase("spy", "Succeeded")
    assert (await world.log("spy")).splitlines() == [*(f"refused {place}" for place in PLACES), "done"]
    # The same look as root finds everything, so the look is not blind.
    world.api.add_pod("root", {"containers": [sh(script, securityContext={"runAsUser": 0})]})
    await world.phase("root", "Succeeded")
    seen = await world.log("root")
    assert [place for place in PLACES if f"read {place}\n" not in seen] == []
    assert "read environment" in seen


@pytest.mark.linux
@as_root
async def test_command_lines_and_files_for_everybody_can_be_read(world: World) -> None:
    """Pods are processes of one host: what the system shows to every user, it shows to every pod."""
    await world.boot()
    with tempfile.NamedTemporaryFile("w", prefix="thunderfleet-test-") as model:
        model.write("weights")
        model.flush()
        os.chmod(model.name, 0o644)
        look = f"cat {model.name}; tr '\\0' ' ' < /proc/{os.getpid()}/cmdline"
        world.api.add_pod("looks", {"containers": [sh(look)]})
        await world.phase("looks", "Succeeded")
    assert (await world.log("looks")).startswith("weights" + " ".join(sys.orig_argv[:1]))


@as_root
async def test_containers_of_one_pod_share_what_they_mount(world: World) -> None:
    await world.boot()
    mount = [{"name": "shared", "mountPath": "/shared"}]
    first = sh('echo one > "$HOME"/shared/note; id -G; sleep 600', volumeMounts=mount)
    wait = 'while ! cat "$HOME"/shared/note; do sleep 0.02; done 2>/dev/null; id -u; id -G; sleep 600'
    second = sh(wait, volumeMounts=mount, securityContext={"runAsUser": 2002, "runAsGroup": 3000})
    world.api.add_pod("both", {"volumes": [SHARED], "containers": [first, {**second, "name": "second"}]})
    await world.phase("both", "Running")
    own = str(world.user("both"))
    await world.until(lambda: len((world.folder("both").log("second", 0)).read_text().splitlines()) == 3)
    assert (await world.log("both", "second")).splitlines() == ["one", "2002", f"3000 {own}"]
    assert (await world.log("both", "main")).split() == [own]


@as_root
async def test_a_user_without_an_account_has_a_name_and_a_home(world: World) -> None:
    """Programs ask for them first, and only then for the account, which does not exist."""
    await world.boot()
    world.api.add_pod("named", {"containers": [sh('echo "$USER $LOGNAME"; cd ~; pwd')]})
    await world.phase("named", "Succeeded")
    name, home = (await world.log("named")).splitlines()
    assert name == "pod pod"
    assert home == str(world.folder("named").sandbox("main", 0))


@as_root
async def test_exec_and_probes_run_as_the_pods_user(world: World) -> None:
    manager = await world.boot()
    probe = {"exec": {"command": ["sh", "-c", "id -u > $HOME/probed"]}, "periodSeconds": 1}
    world.api.add_pod("probed", {"containers": [sh("sleep 600", readinessProbe=probe)]})
    await world.phase("probed", "Running")
    probed = world.folder("probed").sandbox("main", 0) / "probed"
    # Each probe empties the file before it writes.
    await world.until(lambda: probed.exists() and probed.read_text().strip() == str(world.user("probed")))
    session = await manager.queries.exec("default", "probed", None, ["id", "-u"], stdin=False, tty=True)
    assert b"".join([part async for part in session.stdout]).split() == [str(world.user("probed")).encode()]
    await session.kill()


@as_root
async def test_a_spec_cannot_name_the_user_of_another_pod(world: World) -> None:
    await world.boot()
    world.api.add_pod("victim", {"containers": [sh("sleep 600")]})
    await world.phase("victim", "Running")
    user = world.user("victim")
    for name, context in {"u": {"runAsUser": user}, "g": {"runAsUser": 5000, "runAsGroup": user}}.items():
        world.api.add_pod(name, {"containers": [sh("true", securityContext=context)]})

    def reasons() -> list[str]:
        return [state(world.api.pod(name)["status"])["waiting"]["reason"] for name in ("u", "g")]

    await world.until(lambda: reasons() == ["CreateContainerConfigError"] * 2)
    for name in ("u", "g"):
        waiting = state(world.api.pod(name)["status"])["waiting"]
        assert f"{user}: podUsers in the kubelet's configuration reserves it" in waiting["message"]


# The end


@as_root
async def test_a_user_is_free_when_its_processes_are_gone(world: World) -> None:
    """A process that leaves its session and wipes its environment cannot be found by either."""
    manager = await world.boot()
    escape = "env -i setsid sh -c 'while :; do env -i setsid sleep 611 & sleep 0.05; done' & sleep 0.5"
    world.api.add_pod("escapes", {"containers": [sh(escape)]})
    await world.phase("escapes", "Succeeded")
    folder = world.folder("escapes")
    await world.until(lambda: manager._users.own(folder) is None)
    assert [user for user in IDS if processes.of_user(user)] == []


@as_root
async def test_a_pod_that_has_ended_keeps_its_log_and_message_but_no_files(world: World) -> None:
    manager = await world.boot()
    script = 'cd "$HOME"; echo line; echo last words > dev/termination-log; echo x > shared/x; exit 3'
    world.api.add_pod("ended", {"volumes": [TOKEN, SHARED], "containers": [sh(script, volumeMounts=[MOUNTS[0], MOUNTS[2]])]})
    status = await world.phase("ended", "Failed")
    folder = world.folder("ended")
    await world.until(lambda: manager._users.own(folder) is None)
    assert not (folder.path / "empty").exists()
    assert not (folder.path / "volumes").exists()
    assert not (folder.path / "containers/main/sandbox").exists()
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert await world.log("ended") == "line\n"
    await manager.stop(end_pods=False)
    await world.boot()
    await asyncio.sleep(0)
    assert world.api.pod("ended")["status"] == status
    assert json.loads((folder.attempt("main", 0) / "exit.json").read_text())["message"] == "last words\n"
    world.api.delete_pod("ended")
    await world.until(lambda: not list(world.root.glob("pods/*")))


@as_root
async def test_a_new_kubelet_keeps_the_users(world: World) -> None:
    first = await world.boot()
    for name in ("a", "b"):
        world.api.add_pod(name, {"restartPolicy": "Always", "containers": [sh("id -u; sleep 600")]})
        await world.phase(name, "Running")
    users = {name: world.user(name) for name in ("a", "b")}
    assert len(set(users.values())) == 2
    await first.stop(end_pods=False)
    second = await world.boot()
    assert {name: second._users.own(world.folder(name)) for name in ("a", "b")} == users
    world.api.add_pod("c", {"containers": [sh("sleep 600")]})
    await world.phase("c", "Running")
    assert world.user("c") not in users.values()


@as_root
async def test_no_user_is_left_for_a_pod_until_one_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from thunderfleet_kubelet.pods import worker

    monkeypatch.setattr(worker, "RETRY_SECONDS", 0.1)
    manager = await world.boot()
    manager._users._ids = range(IDS[0], IDS[1])
    world.api.add_pod("one", {"containers": [sh("sleep 600")]})
    await world.phase("one", "Running")
    world.api.add_pod("two", {"containers": [sh("true")]})
    await world.until(lambda: "FailedCreatePodSandBox" in world.api.reasons())
    assert world.api.pod("two")["status"]["phase"] == "Pending"
    world.api.delete_pod("one", grace=0)
    await world.phase("two", "Succeeded")


def sleeper(user: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"], user=user, group=user, extra_groups=[], cwd="/", start_new_session=True)


@as_root
async def test_the_end_of_a_user_is_the_end_of_no_other() -> None:
    mine, other = IDS[-1], IDS[-2]
    held = [sleeper(user) for user in (mine, other)]
    try:
        assert await leftovers.end_processes(mine) == []
        assert held[0].wait(60) == -9
        assert held[1].poll() is None
    finally:
        for process in held:
            process.kill()
            process.wait()


# What it left elsewhere


def as_user(user: int, script: str, *arguments: Path) -> None:
    command = ["/bin/sh", "-ec", script, "sh", *map(str, arguments)]
    done = subprocess.run(command, user=user, group=user, extra_groups=[], cwd="/", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


HIDE = 'umask 077; mkdir -p "$1/deep/er"; echo x > "$1/deep/er/secret"; chmod 0 "$1/deep"; ln -s "$2" "$1/link"'


def owned(folder: Path, user: int) -> list[str]:
    """What ``user`` owns below ``folder``."""
    found = [path for path in folder.rglob("*") if path.lstat().st_uid == user]
    return sorted(str(path.relative_to(folder)) for path in found)


@pytest.mark.linux
@as_root
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads Linux's table of System V IPC")
async def test_a_pod_leaves_nothing_to_the_next_one_with_its_user(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files in folders of everybody, and IPC, would belong to the next pod that gets the number."""
    monkeypatch.setattr(leftovers, "SHARED_FOLDERS", SHARED_FOLDERS)
    manager = await world.boot()
    left = f"thunderfleet-test-{os.getpid()}"
    places = ("/tmp", "/var/tmp", "/dev/shm")
    write = f"ipcmk -M 4096 -S 1 -Q && for place in {' '.join(places)}; do echo secret > $place/{left}; done"
    world.api.add_pod("writes", {"containers": [sh(write)]})
    await world.phase("writes", "Succeeded")
    folder = world.folder("writes")
    await world.until(lambda: manager._users.own(folder) is None)
    assert not {name for place in places for name in os.listdir(place) if name == left}
    assert [user for user in IDS if leftovers._ipc(user)] == []


@as_root
async def test_a_link_to_a_setuid_program_of_a_pod_ends_with_it(world: World) -> None:
    """Where the system lets every user make hard links, an accomplice could run it later as the next pod with that user."""
    manager = await world.boot()
    world.api.add_pod("accomplice", {"volumes": [SHARED], "containers": [sh("sleep 600", volumeMounts=[MOUNTS[2]])]})
    world.api.add_pod("victim", {"containers": [sh("sleep 600")]})
    for name in ("accomplice", "victim"):
        await world.phase(name, "Running")
    user, folder = world.user("victim"), world.folder("victim")
    kept, link = (world.folder("accomplice").empty("shared") / name for name in ("kept", "link"))
    for path, owner in ((link, user), (kept, world.user("accomplice"))):
        path.touch()
        os.chown(path, owner, owner)
        os.chmod(path, 0o4755)
    world.api.delete_pod("victim", grace=0)
    await world.until(lambda: manager._users.own(folder) is None)
    assert (link.exists(), kept.exists()) == (False, True)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter; those that pytest makes are the invoking user's."""
    with tempfile.TemporaryDirectory(prefix="thunderfleet-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@as_root
async def test_only_what_the_user_owns_is_deleted_outside_of_its_pod(open_folder: Path) -> None:
    mine, other = IDS[-1], IDS[-2]
    shared, kept = open_folder / "shared", open_folder / "kept"
    for folder in (shared, kept):
        folder.mkdir()
        folder.chmod(0o1777)
    (kept / "file").touch()
    os.chown(kept / "file", mine, mine)
    as_user(mine, HIDE, shared / "mine", kept)
    as_user(other, 'mkdir "$1"; chmod 777 "$1"', shared / "other")
    as_user(mine, 'touch "$1"', shared / "other" / "mine")
    # A folder of the user in which another one has put something.
    as_user(mine, 'mkdir "$1"; chmod 777 "$1"', shared / "both")
    as_user(other, 'touch "$1"', shared / "both" / "other")
    await leftovers.delete_outside(mine, [str(shared), str(open_folder / "none")])
    assert owned(shared, mine) == []
    assert owned(shared, other) == ["both/other", "other"]
    assert (shared / "both").stat().st_uid == 0
    assert (kept / "file").exists(), "links are not followed"


async def test_too_many_files_in_shared_folders_are_an_error_with_a_limit(tmp_path: Path) -> None:
    turns = [(host, 0.0) for host, _ in leftovers.TURNS]
    with pytest.raises(TimeoutError, match="find did not end in time"):
        await leftovers.delete_outside(IDS[-1], [str(tmp_path), "/usr"], turns)


@pytest.mark.parametrize("program", ["kill -9 $$", "exit 127"])
async def test_a_search_that_fails_does_not_mean_that_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr(leftovers, "_QUIETLY", ("/bin/sh", "-c", program))
    with pytest.raises(OSError, match="find "):
        await leftovers.delete_outside(IDS[-1], [str(tmp_path)])


def test_ipc_of_a_user_in_the_tables_of_linux_and_macos() -> None:
    linux = (
        "key shmid perms size cpid lpid nattch uid gid cuid cgid\n 0 7 1600 4096 1 0 0 70001 0 0 0\n 0 8 600 1 1 0 0 5 0 5 0\n"
    )
    assert leftovers.ipc_of("m", linux, 70001) == [("m", "7")]
    assert leftovers.ipc_of("m", "", 70001) == []
    macos = (
        "IPC status from <running system> as of Mon Jan  1 00:00:00 UTC 2026\n"
        "T     ID     KEY        MODE       OWNER    GROUP  CREATOR   CGROUP\n"
        "Shared Memory:\n"
        "m  65536 0x00000000 --rw-------    70001    70001    70001    70001\n"
        "m  65537 0x00000000 --rw-------     root    wheel     root    wheel\n"
        "s 131072 0x00000000 --ra-------     root    wheel    70001    70001\n"
    )
    assert leftovers.ipcs_of(macos, 70001) == [("m", "65536"), ("s", "131072")]


def test_processes_of_a_user_in_the_output_of_ps() -> None:
    output = b"  10 Ss  501 501 501\n  11 R   0 70001 0\n  12 Z 70001 70001 70001\n  13 S 70001 70001 70001\nbad line\n"
    assert processes.users_in(output, 70001) == [11, 13]


async def test_a_folder_is_deleted_without_following_links(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(kept)
    await leftovers.delete(folder)
    link = tmp_path / "link"
    link.symlink_to(kept)
    await leftovers.delete(link)
    await leftovers.delete(tmp_path / "none")
    assert sorted(os.listdir(tmp_path)) == ["kept"]
    assert (kept / "file").exists()
