"""Ratios, bounds, the table and the JSON of the benchmarks."""

import json

import pytest

from tests.bench.figures import FORMAT, Bound, Figure, Missing, Report, number, table


def test_medians_are_compared_not_means() -> None:
    figure = Figure("start", "s", (3.0, 2.0, 90.0), (2.0, 2.0, 50.0), "by hand", Bound("<=", 1.5))
    assert (figure.value, figure.other_value, figure.ratio) == (3.0, 2.0, 1.5)
    assert figure.holds is True, "a bound may be reached"


@pytest.mark.parametrize(
    ("bound", "ours", "other", "holds"),
    [
        (Bound("<=", 2), (2.1,), (1.0,), False),
        (Bound(">=", 0.95), (94.0,), (100.0,), False),
        (Bound(">=", 0.95), (96.0,), (100.0,), True),
        (Bound("<=", 0), (0.0,), (), True),
        (Bound("<=", 160), (161.0,), (), False),
        (None, (5.0,), (), None),
    ],
)
def test_a_bound_is_about_the_ratio_where_there_is_one(
    bound: Bound | None, ours: tuple[float, ...], other: tuple[float, ...], holds: bool | None
) -> None:
    assert Figure("figure", "", ours, other, "other" if other else "", bound).holds is holds


@pytest.mark.parametrize(
    ("ours", "other", "name", "said"),
    [
        ((), (), "", "needs a sample"),
        ((1.0,), (1.0,), "", "both its name and its samples"),
        ((1.0,), (), "other", "both its name and its samples"),
        ((1.0,), (0.0,), "other", "no ratio"),
    ],
)
def test_what_cannot_be_a_figure(ours: tuple[float, ...], other: tuple[float, ...], name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Figure("figure", "s", ours, other, name)


def test_table_says_both_sides_the_bound_and_whether_it_holds() -> None:
    lines = table(
        [
            Figure("start", "s", (3.0,), (2.5,), "by hand", Bound("<=", 1.5), "once"),
            Figure("decode", "tokens/s", (90.0,), (100.0,), "server", Bound(">=", 0.95)),
            Figure("up", "s", (12.345,)),
            Figure("memory", "MB", (161.4,), bound=Bound("<=", 160)),
        ]
    ).splitlines()
    assert lines[0].split() == ["FIGURE", "OURS", "OTHER", "SIDE", "RATIO", "WANTED", "HOLDS", "HOW"]
    assert lines[1].split() == ["start", "3", "s", "2.5", "s", "(by", "hand)", "1.20", "<=", "1.5", "yes", "once"]
    assert lines[2].split() == ["decode", "90", "tokens/s", "100", "tokens/s", "(server)", "0.90", ">=", "0.95", "NO"]
    assert lines[3].split() == ["up", "12.3", "s"]
    assert lines[4].split() == ["memory", "161", "MB", "<=", "160", "MB", "NO"]


def test_table_leaves_out_columns_that_nothing_is_in() -> None:
    assert table([Figure("up", "s", (1.0,))]).splitlines()[0].split() == ["FIGURE", "OURS"]


def test_columns_are_aligned() -> None:
    lines = table([Figure("a", "s", (1.0,), note="here"), Figure("longer", "s", (100.0,), note="here")]).splitlines()
    assert len({line.index("here") for line in lines[1:]}) == 1


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.05678, "0.0568"), (12.345, "12.3"), (161.4, "161"), (123456.0, "123456")]
)
def test_numbers_have_three_digits_that_count(value: float, text: str) -> None:
    assert number(value) == text


def test_json_has_the_shape_that_is_documented() -> None:
    report = Report({"cores": 2}, [Figure("start", "s", (3.0, 4.0), (2.0,), "by hand", Bound("<=", 1.5), "twice")])
    report.figures.append(Figure("up", "s", (9.0,)))
    said = json.loads(json.dumps(report.to_json()))
    assert said == {
        "format": FORMAT,
        "machine": {"cores": 2},
        "figures": [
            {
                "name": "start",
                "unit": "s",
                "value": 3.5,
                "samples": [3.0, 4.0],
                "other": {"name": "by hand", "value": 2.0, "samples": [2.0]},
                "ratio": 1.75,
                "bound": {"sense": "<=", "limit": 1.5},
                "holds": False,
                "note": "twice",
            },
            {
                "name": "up",
                "unit": "s",
                "value": 9.0,
                "samples": [9.0],
                "other": None,
                "ratio": None,
                "bound": None,
                "holds": None,
                "note": "",
            },
        ],
        "missing": [],
        "holds": False,
    }
    assert Report.to_json.__doc__ is not None
    for name in {*said, *said["figures"][0]}:
        assert f"``{name}``" in Report.to_json.__doc__


def test_what_was_not_measured_does_not_hold() -> None:
    report = Report({}, [Figure("up", "s", (9.0,))])
    assert report.holds
    report.missing.append(Missing("decode", "the endpoint did not answer"))
    assert not report.holds
    assert report.to_json()["missing"] == [{"benchmark": "decode", "why": "the endpoint did not answer"}]
