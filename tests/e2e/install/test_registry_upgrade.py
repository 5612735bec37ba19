"""A fleet whose programs all come from a registry, and `helm upgrade` to another tag: no command is run on any Mac."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from thunderfleet_localcluster.client.cluster import Cluster

from tests.support.images import distribution, fleetimage
from tests.support.images.registry import Registry, save
from tests.support.install.upgrading import version_of
from tests.support.line import CHART, SYSTEM, Deployment, Line, discovered, on_fleet
from tests.support.waiting import until

pytestmark = pytest.mark.soak

Json = dict[str, Any]

FLEET = """
machines:
  - {name: linux-1, kind: linux}
  - {name: studio-1, model: Mac Studio (M3 Ultra), memory: 96 GB}
  - {name: studio-2, model: Mac Studio (M3 Ultra), memory: 96 GB}
cables:
  - {a: "studio-1:1", b: "studio-2:1", speed: 80}
"""
PORT = 15123
REPOSITORY = "team/thunderfleet"
FIRST, SECOND = "first", "second"
SMALL = 16 * 1024
"""More bytes than the layer in which the second image differs."""
ROLL_SECONDS = 240.0


class Rolling:
    """The fleet, and the digests and versions of the images by tag."""

    def __init__(self) -> None:
        self.line: Line
        self.digests: dict[str, str] = {}
        self.versions: dict[str, str] = {}

    def prepare(self, cluster: Cluster) -> tuple[str, ...]:
        """Starts the registry on the Linux machine, and lets all kubelets ask it without TLS. Returns the chart's values."""
        home = cluster.machines["linux-1"]
        self.host = f"{home.address}:{PORT}"
        self.versions = {tag: f"{version_of(cluster)}+{tag}" for tag in (FIRST, SECOND)}
        registry = Registry()
        self.digests = fleetimage.put(registry, REPOSITORY, cluster.image_folder, self.versions)
        save(registry, home.folder / "registry")
        distribution.start(home, home.folder / "registry", self.host)
        for machine in cluster.machines.values():
            file = machine.folder / "kubelet.yaml"
            machine.stop_kubelet()
            file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "imagePulls": {"plainHttp": [self.host]}}))
            machine.start_kubelet()
        return f"image.repository={self.host}/{REPOSITORY}", f"image.tag={FIRST}"

    def pods(self, component: str) -> list[Json]:
        return self.line.items("pods", "-n", SYSTEM, "-l", f"app.kubernetes.io/component={component}")

    def upgrade(self, tag: str) -> None:
        words = ("upgrade", "thunderfleet", str(CHART), "-n", SYSTEM, "--reuse-values", "--set", f"image.tag={tag}")
        self.line.cluster.helm(*words, "--wait", "--timeout", f"{ROLL_SECONDS:g}s", seconds=ROLL_SECONDS + 30)

    def runs(self, tag: str) -> bool:
        """Whether agents and operator are Ready with the image of ``tag``, and nothing else of them is left."""
        agents, operators = self.pods("agent"), self.pods("operator")
        ready = [
            one
            for pod in (*agents, *operators)
            for one in pod["status"].get("containerStatuses") or []
            if one["ready"] and one["imageID"] == f"{self.host}/{REPOSITORY}@{self.digests[tag]}"
        ]
        return (len(agents), len(operators), len(ready)) == (len(self.line.macs), 1, len(agents) + 1)

    def until_runs(self, tag: str) -> None:
        until(lambda: self.runs(tag), f"all run the image {tag}", ROLL_SECONDS, describe=self.describe)
        restarts = [one["restartCount"] for pod in self.pods("agent") for one in pod["status"]["containerStatuses"]]
        assert restarts == [0] * len(self.line.macs), self.describe()

    def fetched(self, tag: str) -> list[str]:
        """What the Events about pulls of agents' images with a tag say."""
        events = self.line.json("get", "events", "-n", SYSTEM, "--field-selector", "reason=Pulled")["items"]
        agents = [one["message"] for one in events if one["involvedObject"]["name"].startswith("thunderfleet-agent")]
        return [message for message in agents if f":{tag}'" in message]

    def describe(self) -> str:
        parts = []
        for pod in (*self.pods("agent"), *self.pods("operator")):
            name = pod["metadata"]["name"]
            parts.append(f"--- {name}: {json.dumps(pod['status'].get('containerStatuses'))}")
            for more in ((), ("--previous",)):
                done = self.line.cluster.kubectl("logs", "-n", SYSTEM, name, "--tail=15", *more, check=False)
                parts.append(done.stdout or done.stderr)
        parts.append(self.line.kubectl("get", "events", "-n", SYSTEM))
        return "\n".join(parts)


@pytest.fixture(scope="module")
def rolling() -> Iterator[Rolling]:
    found = Rolling()
    with on_fleet(FLEET, "registry", "", "operator.replicas=1", prepare=found.prepare) as line:
        found.line = line
        yield found


def version_in(group: Deployment) -> str:
    return str(group.group().get("runnerVersion"))


def test_a_new_tag_rolls_agents_and_leaves_groups_until_they_form_again(rolling: Rolling) -> None:
    line = rolling.line
    rolling.until_runs(FIRST)
    kept = line.deploy("kept").until_ready()
    pods = {pod["metadata"]["uid"] for pod in line.items("pods", "-n", kept.namespace)}
    assert version_in(kept) == rolling.versions[FIRST]
    rolling.upgrade(SECOND)
    rolling.until_runs(SECOND)
    until(lambda: discovered(line), "the new agents know their Macs", ROLL_SECONDS, describe=rolling.describe)
    # Each Mac fetched only the layer that it had not.
    sizes = [int(text.rpartition(" bytes fetched")[0].rpartition(" ")[2]) for text in rolling.fetched(SECOND)]
    assert len(sizes) == len(line.macs) and max(sizes) < SMALL, rolling.fetched(SECOND)
    # The group was left alone.
    assert kept.serves() and version_in(kept) == rolling.versions[FIRST]
    assert {pod["metadata"]["uid"] for pod in line.items("pods", "-n", kept.namespace)} == pods
    kept.kubectl("delete", "pod", "-l", f"thunderfleet.io/deployment={kept.name}", "--wait=false")
    kept.until(lambda: version_in(kept) == rolling.versions[SECOND], "it has formed with the new image", ROLL_SECONDS)
    kept.until(kept.serves, "it serves")


def test_a_tag_that_does_not_exist_takes_no_group_away_and_a_rollback_mends_it(rolling: Rolling) -> None:
    line = rolling.line
    kept = line.deploy("still").until_ready()
    tag = next(one for one in (FIRST, SECOND) if rolling.runs(one))
    line.cluster.helm(
        *("upgrade", "thunderfleet", str(CHART), "-n", SYSTEM, "--reuse-values", "--set", "image.tag=none"),
        seconds=ROLL_SECONDS,
    )

    def waiting() -> list[str]:
        states = [one.get("state", {}) for pod in rolling.pods("agent") for one in pod["status"].get("containerStatuses") or []]
        return [str(one.get("waiting", {}).get("message")) for one in states if "waiting" in one]

    until(
        lambda: any("manifest unknown" in text for text in waiting()), "an agent waits for its image", describe=rolling.describe
    )
    # One Mac at a time, so the others keep their agents.
    assert len(waiting()) == 1 and kept.serves()
    line.cluster.helm("rollback", "thunderfleet", "-n", SYSTEM, seconds=ROLL_SECONDS)
    rolling.until_runs(tag)
    assert kept.serves()
