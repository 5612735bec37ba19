"""``thunderfleet-agent measure``: its output, and its errors."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from thunderfleet_agent import cli
from thunderfleet_agent.measure import measure_cli
from thunderfleet_agent.measure.measure_cli import ProbeResult
from thunderfleet_agent.measure.schedule.figures import Figures
from thunderfleet_agent.measure.schedule.settings import MeasureSettings
from thunderfleet_agent.peers import identity


def test_a_link_without_what_it_needs_says_what_that_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    nothing = str(tmp_path / "nothing")
    assert cli.main(["measure", "link", "studio-2", "--node-name", "studio-1", "--state-folder", nothing]) == 1
    said = capsys.readouterr().err
    assert "its address (--host-ip" in said and "--state-folder" in said and "--node-name" not in said
    assert "kubectl -n thunderfleet-system exec" in said


@pytest.mark.parametrize("words", [["link"], ["gpu", "studio-2"], ["disk"], ["gpu", "--test"]])
def test_wrong_words_are_bad_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = cli.main(["measure", *words])
    except SystemExit as error:
        code = int(str(error.code))
    assert code == 2 and capsys.readouterr().err


async def test_a_certificate_that_is_none_is_named(tmp_path: Path) -> None:
    own = measure_cli.LocalAgent("studio-1", "127.0.0.1", tmp_path, None)
    with pytest.raises(measure_cli.CannotMeasure, match=r"certificate in .* cannot be used"):
        await measure_cli.link("studio-2", own, MeasureSettings(), measure_cli.StatusLine(io.StringIO()))


async def test_a_link_to_itself_is_none(tmp_path: Path) -> None:
    identity.write(tmp_path)
    own = measure_cli.LocalAgent("studio-1", "127.0.0.1", tmp_path, None)
    with pytest.raises(measure_cli.CannotMeasure, match="studio-1 is this Mac; choose another Mac from `kubectl get np`"):
        await measure_cli.link("studio-1", own, MeasureSettings(), measure_cli.StatusLine(io.StringIO()))


def test_figures_for_people_and_for_programs() -> None:
    found = Figures(flops=27_300_000_000_000, device="gpu: Apple M3 Ultra", mlx_version="0.32.4", os_version="26.3")
    link = Figures(received_mbps=38_000, sent_mbps=9_000, rtt_microseconds=36, jitter_microseconds=2)
    answers = [
        ProbeResult("gpu", found, kind="gpu"),
        ProbeResult("socket: b at 10.0.0.2", link, kind="socket", link="a.tb1--b.tb1"),
        ProbeResult("rdma", error="not measured: no JACCL"),
        ProbeResult("rdma: b over a.tb1--b.tb1", error="not measured: in use", kind="rdma", link="a.tb1--b.tb1", refused=True),
    ]
    text = measure_cli.lines(answers, "text")
    assert text.splitlines() == [
        "gpu: fp16 27300 GFLOPS (gpu: Apple M3 Ultra, mlx 0.32.4, 26.3)",
        "socket: b at 10.0.0.2: received 38000 Mb/s, sent 9000 Mb/s, round trip 36 µs, jitter 2 µs",
        "rdma: not measured: no JACCL",
        "rdma: b over a.tb1--b.tb1: not measured: in use",
    ]
    said = json.loads(measure_cli.lines(answers, "json"))
    assert said[0]["flops"] == 27_300_000_000_000 and said[1]["link"] == said[3]["link"] == "a.tb1--b.tb1"
    assert said[2] == {"probe": "rdma", "error": "not measured: no JACCL"} and said[3]["refused"] is True
    assert [one.failed for one in answers] == [False, False, False, True], "that RDMA is not to be had is no failure"


def test_the_progress_line_is_written_over_on_a_terminal_only() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    live, plain = Terminal(), io.StringIO()
    for out in (live, plain):
        progress = measure_cli.StatusLine(out)
        for number in range(5):
            progress.show(f"run {number}")
        progress.end()
    assert live.getvalue().count("\r") == 6 and "\n" not in live.getvalue()
    assert plain.getvalue().count("\n") == 1 and "\r" not in plain.getvalue()


def test_settings_that_cannot_be_end_the_agent_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "--node-name", "a", "--host-ip", "127.0.0.1", "--measure", '{"gpu": {"everySeconds": 1}}']
    assert cli.main(words) == 2
    assert "--measure: gpu.everySeconds" in capsys.readouterr().err
