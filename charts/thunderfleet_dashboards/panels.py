"""Common parts of all dashboards: variables, links between them, and panels with a unit, thresholds and a description."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from grafana_foundation_sdk.builders import common as common_builder
from grafana_foundation_sdk.builders import dashboard as builder
from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models import prometheus as model

from thunderfleet_dashboards.queries import CLUSTER

TAG: Final = "thunderfleet"
SOURCE: Final = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
PANEL_HEIGHT: Final = 8
STAT_HEIGHT: Final = 4

Variable = Literal["namespace", "deployment", "node"]
VARIABLES: Final[dict[Variable, tuple[str, str]]] = {
    "namespace": ("Namespace", f"label_values(thunderfleet_modeldeployment_replicas{{{CLUSTER}}}, namespace)"),
    "deployment": (
        "ModelDeployment",
        f'label_values(thunderfleet_modeldeployment_replicas{{{CLUSTER}, namespace=~"$namespace"}}, name)',
    ),
    "node": ("Mac", f"label_values(thunderfleet_mac_ready{{{CLUSTER}}}, node)"),
}


@dataclass(frozen=True)
class Query:
    """PromQL, and the text of the legend, in which ``{{label}}`` is the label's value."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Shown:
    """A panel.

    ``warn`` and ``bad``: the values from which it is yellow and red. With ``low``, small values are bad: it is red below
    ``warn``, yellow from there to ``bad``, and green from ``bad``.
    ``quiet``: the panel is empty while nothing is wrong.
    """

    title: str
    description: str
    queries: Sequence[Query]
    unit: str = "short"
    kind: Literal["lines", "number", "table"] = "lines"
    width: int = 8
    warn: float | None = None
    bad: float | None = None
    low: bool = False
    quiet: bool = False
    links: Sequence[tuple[str, str]] = ()
    """Title and address of the page that a click on a series opens."""


@dataclass(frozen=True)
class Row:
    """Panels below a heading."""

    title: str
    panels: Sequence[Shown]


@dataclass(frozen=True)
class Page:
    """One dashboard. ``uid`` is the name of its file and the end of its address in Grafana."""

    uid: str
    title: str
    description: str
    rows: Sequence[Row]
    variables: Sequence[Variable] = field(default=())


def _thresholds(shown: Shown) -> builder.ThresholdsConfig:
    calm, alarm = ("red", "green") if shown.low else ("green", "red")
    steps = [dashboard.Threshold(value=None, color=calm)]
    if shown.warn is not None:
        steps.append(dashboard.Threshold(value=shown.warn, color="yellow"))
    if shown.bad is not None:
        steps.append(dashboard.Threshold(value=shown.bad, color=alarm))
    return builder.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(steps)


def _targets(shown: Shown) -> list[prometheus.Dataquery]:
    found = []
    for number, query in enumerate(shown.queries):
        target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(chr(ord("A") + number))
        target = target.datasource(SOURCE).editor_mode(model.QueryEditorMode.CODE)
        tabular = shown.kind == "table"
        found.append(target.instant().format(model.PromQueryFormat.TABLE) if tabular else target.range())
    return found


def _panel(shown: Shown, number: int) -> Any:
    panel: Any
    if shown.kind == "number":
        panel = stat.Panel().height(STAT_HEIGHT).graph_mode(common.BigValueGraphMode.AREA)
        panel = panel.reduce_options(common_builder.ReduceDataOptions().calcs(["lastNotNull"]))
    elif shown.kind == "table":
        panel = table.Panel().height(PANEL_HEIGHT).filterable(True)
        hidden = dict.fromkeys(("Time", "__name__", "job", "instance"), True)
        organize = dashboard.DataTransformerConfig(id_val="organize", options={"excludeByName": hidden})
        panel = panel.with_transformation(dashboard.DataTransformerConfig(id_val="merge", options={}))
        panel = panel.with_transformation(organize)
    else:
        panel = timeseries.Panel().height(PANEL_HEIGHT).fill_opacity(10).show_points(common.VisibilityMode.NEVER)
        panel = panel.legend(common_builder.VizLegendOptions().show_legend(True).placement(common.LegendPlacement.BOTTOM))
        panel = panel.tooltip(
            common_builder.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
        )
        if shown.warn is not None or shown.bad is not None:
            style = common_builder.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED)
            panel = panel.thresholds_style(style)
    panel = panel.id(number).title(shown.title).description(shown.description).span(shown.width).unit(shown.unit)
    panel = panel.datasource(SOURCE).thresholds(_thresholds(shown)).targets(_targets(shown))
    if shown.quiet:
        panel = panel.no_value("none")
    if shown.links:
        panel = panel.data_links([builder.DashboardLink(title).url(url) for title, url in shown.links])
    return panel


def _query_variable(name: str, label: str, query: str) -> builder.QueryVariable:
    return (
        builder.QueryVariable(name)
        .label(label)
        .query(query)
        .datasource(SOURCE)
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(dashboard.VariableOption(selected=True, text=["All"], value=["$__all"]))
    )


def link_to(uid: str, variable: str, label: str) -> tuple[str, str]:
    """A link to another page, for the object that the series is about."""
    chosen = f"var-{variable}=${{__field.labels.{label}}}&${{__url_time_range}}"
    return (f"Open {uid.removeprefix('thunderfleet-')}", f"/d/{uid}?{chosen}")


def build(page: Page) -> dict[str, Any]:
    """The JSON of a dashboard, as Grafana imports it."""
    made = (
        builder.Dashboard(page.title)
        .uid(page.uid)
        .description(page.description)
        .tags([TAG])
        .refresh("30s")
        .time("now-3h", "now")
        .timezone("browser")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .link(
            builder.DashboardLink("Thunderfleet")
            .type(dashboard.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(False)
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(builder.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(_query_variable("cluster", "Cluster", "label_values(thunderfleet_build_info, cluster)"))
    )
    for name in page.variables:
        made = made.with_variable(_query_variable(name, *VARIABLES[name]))
    number = 0
    for row in page.rows:
        number += 1
        made = made.with_row(builder.Row(row.title).id(number))
        for shown in row.panels:
            number += 1
            made = made.with_panel(_panel(shown, number))
    loaded: dict[str, Any] = json.loads(json.dumps(made.build(), cls=JSONEncoder))
    return _without_defaults_of_others(loaded)


def _without_defaults_of_others(made: dict[str, Any]) -> dict[str, Any]:
    """Removes fields that the SDK writes although Grafana's schema does not have them.

    The SDK writes fields of interval variables into all variables, and fields of a dashboard's links into the links of series.
    """
    for variable in made["templating"]["list"]:
        for name in ("auto", "auto_min", "auto_count"):
            variable.pop(name, None)
    for panel in made["panels"]:
        defaults = panel.get("fieldConfig", {}).get("defaults", {})
        if "links" in defaults:
            defaults["links"] = [{name: link[name] for name in ("title", "url", "targetBlank")} for link in defaults["links"]]
    return made
