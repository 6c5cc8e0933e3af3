"""The figures of a report, for Plotly: curves with their intervals, tasks, classes.

Numbers go in as lists: of arrays Plotly would make text in base64, which no reader can read.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from adaptax.core.errors import AdaptaxError
from adaptax.experiment.curves import Curve
from adaptax.experiment.plot import COLOURS
from adaptax.experiment.report_page import Figure

MOST_MARKED = 40
"""Points of a curve up to which each has a mark."""
DASHES = ("solid", "dash", "dot", "dashdot")
NamedCurve = tuple[str, Curve, dict[str, Any]]
"""A curve with its name, and what differs from its number's style: Plotly's of a line."""


def check_plotly() -> None:
    """Raise an AdaptaxError where Plotly is not installed."""
    try:
        import plotly  # noqa: F401
    except ImportError as error:
        raise AdaptaxError("reports need plotly: pip install 'adaptax[report]'") from error


def colour(number: int) -> str:
    """The colour of the group with this number."""
    return COLOURS[number % len(COLOURS)]


def curves_figure(curves: Sequence[NamedCurve], x_title: str, y_title: str) -> Figure:
    """Curves with their intervals."""
    import plotly.graph_objects as go

    traces = []
    for i, (name, curve, style) in enumerate(curves):
        line = {"color": colour(i), "dash": DASHES[i // len(COLOURS) % len(DASHES)], **style}
        common = {"legendgroup": str(i), "name": escape(name)}
        if len(curve.x) > 1 and np.any(curve.high > curve.low):
            band = go.Scatter(
                x=[*curve.x.tolist(), *curve.x[::-1].tolist()],
                y=[*curve.high.tolist(), *curve.low[::-1].tolist()],
                mode="lines",
                fill="toself",
                fillcolor=line["color"],
                opacity=0.17,
                line={"width": 0},
                hoverinfo="skip",
                **common,
            )
            traces.append(band)
        ends = np.stack([curve.low, curve.high], axis=-1)
        hover = "%{x}: %{y:.3g} [%{customdata[0]:.3g}, %{customdata[1]:.3g}]"
        main = go.Scatter(
            x=curve.x.tolist(),
            y=curve.mean.tolist(),
            customdata=ends.tolist(),
            hovertemplate=hover,
            mode="lines+markers" if len(curve.x) <= MOST_MARKED else "lines",
            line=line,
            **common,
        )
        if len(curve.x) == 1:
            main.error_y = _reach(curve.mean, curve.low, curve.high)
        traces.append(main)
    return _figure(traces, x_title, y_title)


def points_figure(
    names: Sequence[str],
    x: Sequence[np.ndarray],
    scores: Sequence[np.ndarray],
    titles: tuple[str, str],
) -> Figure:
    """Scores [n] of several kinds over a parameter x [n], which may be words.

    `titles` are of the axes.
    """
    import plotly.graph_objects as go

    traces = [
        go.Scatter(
            x=places.tolist(),
            y=own.tolist(),
            mode="markers",
            marker={"color": colour(i), "size": 8, "symbol": i},
            name=escape(name),
            legendgroup=str(i),
        )
        for i, (name, places, own) in enumerate(zip(names, x, scores, strict=True))
    ]
    return _figure(traces, *titles)


def map_figure(
    places: np.ndarray, scores: np.ndarray, ends: tuple[float, float], titles: tuple[str, str]
) -> Figure:
    """Tasks at their places [tasks, 2], coloured by score [tasks] between `ends`."""
    import plotly.graph_objects as go

    marker = {"color": scores.tolist(), "colorscale": "Viridis", "cmin": ends[0], "cmax": ends[1]}
    trace = go.Scatter(
        x=places[:, 0].tolist(),
        y=places[:, 1].tolist(),
        mode="markers",
        marker={**marker, "size": 12, "colorbar": {"thickness": 12}},
        text=[f"{score:.3g}" for score in scores],
        hovertemplate="(%{x:.3g}, %{y:.3g}): %{text}",
        name="",
    )
    figure = _figure([trace], *titles)
    figure["layout"]["yaxis"] |= {"scaleanchor": "x", "constrain": "domain"}
    figure["layout"]["xaxis"] |= {"constrain": "domain"}
    return figure


def classes_figure(
    names: Sequence[str], bars: Sequence[dict[str, tuple[float, float, float]]]
) -> Figure:
    """Success (mean, low, high) of each class, in each group."""
    import plotly.graph_objects as go

    traces = []
    for i, (name, own) in enumerate(zip(names, bars, strict=True)):
        mean, low, high = np.array(list(own.values())).T
        bar = go.Bar(
            y=[escape(kind) for kind in own],
            x=mean.tolist(),
            error_x=_reach(mean, low, high),
            orientation="h",
            marker={"color": colour(i)},
            name=escape(name),
            legendgroup=str(i),
        )
        traces.append(bar)
    figure = _figure(traces, "share of episodes with success", "")
    figure["layout"]["xaxis"] |= {"range": [0, 1]}
    figure["layout"]["yaxis"] |= {"autorange": "reversed"}
    return figure


def _reach(mean: np.ndarray, low: np.ndarray, high: np.ndarray) -> dict[str, Any]:
    """Bars from low to high, each [n]."""
    ends = {"array": (high - mean).tolist(), "arrayminus": (mean - low).tolist()}
    return {"type": "data", "symmetric": False, **ends}


def _figure(traces: list[Any], x_title: str, y_title: str) -> Figure:
    """A figure as plain values."""
    import plotly.graph_objects as go

    axis = {"automargin": True, "gridcolor": "#e3e6e9", "zeroline": False}
    layout = {
        "template": "none",
        "showlegend": False,
        "margin": {"l": 10, "r": 10, "t": 30, "b": 10},
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "xaxis": {**axis, "title": {"text": escape(x_title)}},
        "yaxis": {**axis, "title": {"text": escape(y_title)}},
    }
    return dict(go.Figure(traces, layout).to_dict())
