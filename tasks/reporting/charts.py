"""The pictures of the report: Vega-Lite through altair, rendered to SVG with the renderer's own fonts.

An SVG needs no script, so a page is the same in MLflow's sandbox, in a mail and on paper; its words have the colour of
the page, light or dark.
"""

import csv
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import altair as alt

from plm_core.shared import paths

COLORS = ("#3f82c8", "#e0792f", "#2f9d72", "#b15fc4", "#c59a1a", "#d4516c", "#38a3b8", "#8a6a4f")
GREY, INK = "#8b949e", "currentColor"
STYLE = "svg{color:#1c2530;background:#fff}@media(prefers-color-scheme:dark){svg{color:#d6dde6;background:#12171d}}"
WIDTH = 190
"""Pixels: with labels, three panels fit side by side into a page, and one into a phone."""
POINTS = 300
"""The points of a curve at most."""
Rows = Sequence[Mapping[str, Any]]


def estimates(title: str, rows: Rows, models: Sequence[str]) -> str:
    """The points ``name, value, low, high`` of models and baselines; ``low`` and ``high`` may be None."""
    names = [row["name"] for row in rows]
    base = _chart(rows, models, names, None, title=title, height=alt.Step(24))
    base = base.encode(y=alt.Y("name:N", sort=names, title=None))
    lines, points = (base.encode(x=alt.X(of, title=None, scale=alt.Scale(zero=False))) for of in ("low:Q", "value:Q"))
    values = base.encode(x=alt.value(WIDTH), text=alt.Text("value:Q", format=".3f"), color=alt.value(INK))
    values = values.mark_text(align="left", dx=8)
    return _svg(lines.mark_rule(strokeWidth=2.5, opacity=0.6).encode(x2="high:Q") + points.mark_point(size=70) + values)


def curves(title: str, unit: str, rows: Rows, models: Sequence[str]) -> str:
    """The ``loss`` at ``x`` of each ``run`` of a model ``name``: training as a pale line, validations (``valid``)
    as dots, with a ring around the one that was ``kept``."""
    base = _chart(rows, models, title=title, height=WIDTH).encode(
        x=alt.X("x:Q", title=unit, axis=alt.Axis(tickCount=4, format="~s")),
        y=alt.Y("loss:Q", title="loss (nats)", scale=alt.Scale(zero=False)),
        detail="run:N",
    )
    valid = base.transform_filter("datum.valid")
    return _svg(
        base.transform_filter("!datum.valid").mark_line(strokeWidth=1, opacity=0.5)
        + valid.mark_line(strokeWidth=1.5)
        + valid.mark_point(size=25)
        + valid.transform_filter("datum.kept").mark_point(size=120, filled=False)
    )


def losses(model: str, run: str, whole: float | None = None) -> Iterator[dict[str, Any]]:
    """The rows of ``curves`` for a model's training run, over its steps or over the ``whole`` of what it took, of
    which every step takes as much."""
    with (paths.CURVES / f"{run}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    unit = whole / max(1, int(rows[-1]["step"])) if whole else 1
    for i, row in enumerate(rows):
        for column in ("loss", "valid_loss"):
            valid = column == "valid_loss"
            if row[column] and math.isfinite(float(row[column])) and (valid or i % (1 + len(rows) // POINTS) == 0):
                place = {"name": model, "run": run, "x": int(row["step"]) * unit, "loss": float(row[column])}
                yield place | {"valid": valid, "kept": valid and row["best"] == "1"}


def heat_maps(panels: Mapping[str, Rows], x: str, y: str, scheme: Any, far: float) -> str:
    """Cells at the columns ``x`` and ``y``, with their ``value``, in the colour of their ``shade`` (to ``far``)."""
    low = -far if scheme == "redblue" else 0
    color = alt.Color("shade:Q", scale=alt.Scale(scheme=scheme, domain=[low, far], clamp=True), legend=None)
    ink = alt.condition(f"abs(datum.shade) > {0.6 * far}", alt.value("white"), alt.value("#1c2530"))
    charts = []
    for title, rows in panels.items():
        base = alt.Chart(alt.Data(values=rows), title=title, width=alt.Step(52), height=alt.Step(28)).encode(
            x=alt.X(f"{x}:N", sort=None, axis=alt.Axis(labelAngle=-35)), y=alt.Y(f"{y}:N", sort=None)
        )
        words = base.mark_text().encode(text=alt.Text("value:Q", format=".2f"), color=ink)
        charts.append(base.mark_rect().encode(color=color) + words)
    return _svg(alt.concat(*charts, columns=2))


def reliability(rows: Rows, models: Sequence[str]) -> str:
    """Accuracy ``right`` by confidence ``sure`` of each model ``name``; on the dotted line the two are equal."""
    low = min(row["sure"] for row in rows)
    x = alt.X("sure:Q", title="confidence", scale=alt.Scale(domain=[low, 1]))
    base = _chart(rows, models, height=WIDTH).encode(x=x, y=alt.Y("right:Q", title="accuracy"))
    ideal = alt.Chart(alt.Data(values=[{"sure": end, "right": end} for end in (low, 1)])).encode(x=x, y="right:Q")
    return _svg(ideal.mark_line(strokeDash=[3, 3], color=GREY) + base.mark_line() + base.mark_point(size=25))


LEGEND = alt.Legend(orient="bottom", columns=4, title=None, symbolOpacity=1)


def _chart(
    rows: Rows, models: Sequence[str], names: Sequence[str] = (), legend: alt.Legend | None = LEGEND, **size: Any
) -> alt.Chart:
    """Rows of models, each in the same colour in every picture, and of baselines among ``names``, which are grey."""
    colors = dict.fromkeys(names, GREY) | {model: COLORS[i % len(COLORS)] for i, model in enumerate(models)}
    scale = alt.Scale(domain=list(colors), range=list(colors.values()))
    chart = alt.Chart(alt.Data(values=rows), width=WIDTH, **size)
    return chart.encode(color=alt.Color("name:N", scale=scale, legend=legend))


def _svg(chart: Any) -> str:
    text = io.StringIO()
    chart.configure(
        aria=False,
        background="transparent",
        font="Liberation Sans, Arial, Helvetica, sans-serif",
        axis=alt.AxisConfig(labelColor=INK, titleColor=INK, gridColor=INK, gridOpacity=0.15, labelSeparation=9),
        legend=alt.LegendConfig(labelColor=INK),
        point=alt.MarkConfig(filled=True, opacity=1),
        title=alt.TitleConfig(color=INK, anchor="start", fontSize=13),
        view=alt.ViewConfig(stroke=None),
    ).save(text, format="svg")
    # A picture is a whole for screen readers: its parts have no names.
    svg = re.sub(r' (role="graphics-|aria-[a-z]+=")[^"]*"', "", text.getvalue())
    return svg.replace(">", f"><style>{STYLE}</style>", 1)
