"""The page of a report as HTML: its frame, its style, and the script that draws its figures.

One file that asks nothing of any network, which its content security policy enforces.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

Figure = dict[str, Any]
"""What Plotly draws: `data` and `layout`, as plain values."""

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; media-src data:; base-uri 'none'; form-action 'none'"
)
STYLE = """
:root { color-scheme: light; --line: #d0d5da; --quiet: #4a5560; --accent: #005a93; }
* { box-sizing: border-box; }
body { margin: 0; font: 1rem/1.5 system-ui, sans-serif; color: #1a1f24; background: #fff; }
header, nav, main { max-width: 74rem; margin: 0 auto; padding: 0 1rem; }
header { padding-top: 1.5rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.5rem 0 .25rem; }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; padding: 0; list-style: none; }
nav a { display: inline-block; padding: .25rem 0; }
a { color: var(--accent); }
.skip { position: absolute; left: -100rem; }
.skip:focus { left: 1rem; top: .5rem; background: #fff; padding: .5rem; z-index: 9; }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
.quiet, figcaption { color: var(--quiet); margin: 1rem 0 .25rem; }
figure { margin: 1rem 0; }
.plot { width: 100%; height: 24rem; }
fieldset { border: 0; padding: 0; margin: .25rem 0; }
fieldset label { margin-right: 1.25rem; }
fieldset legend { float: left; margin-right: 1rem; padding: .2rem 0; color: var(--quiet); }
label { display: inline-flex; align-items: center; gap: .4rem; padding: .2rem 0; }
.swatch { width: 1.25rem; height: .3rem; border-radius: .15rem; }
.maps { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)); }
.maps figure { min-width: 0; }
.wide { overflow-x: auto; }
table { border-collapse: separate; border-spacing: 0; font-variant-numeric: tabular-nums; }
th, td { text-align: right; white-space: nowrap; padding: .25rem .5rem;
  border-bottom: 1px solid var(--line); }
th:first-child { position: sticky; left: 0; background: #fff; text-align: left;
  padding-left: 0; }
@media (max-width: 40rem) {
  th:first-child { min-width: 7rem; max-width: 40vw; white-space: normal;
    overflow-wrap: anywhere; border-right: 1px solid var(--line); }
}
tbody th { font-weight: 600; }
pre { background: #f3f5f7; padding: .75rem; white-space: pre-wrap; overflow-wrap: anywhere; }
.warning { border-left: 4px solid #b35c00; background: #fff6e8; padding: .5rem .75rem; }
img, video { max-width: 100%; height: auto; }
summary { cursor: pointer; padding: .25rem 0; }
"""
SCRIPT = """
"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
const removed = ["lasso2d", "select2d", "sendChartToCloud"];
const settings = {responsive: true, displaylogo: false, modeBarButtonsToRemove: removed};
for (const [name, figure] of Object.entries(figures)) {
  const plot = document.getElementById(name);
  Plotly.newPlot(plot, figure.data, figure.layout, settings).then(() => {
    plot.querySelectorAll(".main-svg").forEach((svg) => svg.setAttribute("aria-hidden", "true"));
    plot.dataset.drawn = "yes";
  });
}
for (const box of document.querySelectorAll("input[data-figure]")) {
  box.addEventListener("change", () => {
    const plot = document.getElementById(box.dataset.figure);
    const own = (i) => plot.data[i].legendgroup === box.dataset.curve;
    Plotly.restyle(plot, {visible: box.checked}, [...plot.data.keys()].filter(own));
  });
}
"""


def page(
    title: str, about: str, sections: Sequence[tuple[str, str]], figures: dict[str, Figure]
) -> str:
    """The whole page; sections are headings and HTML, figures by the ids of their places."""
    from plotly.offline import get_plotlyjs

    parts = [(f"section-{i}", escape(h), content) for i, (h, content) in enumerate(sections)]
    links = "".join(f'<li><a href="#{place}">{heading}</a></li>' for place, heading, _ in parts)
    body = "".join(
        f'<section aria-labelledby="{place}"><h2 id="{place}">{heading}</h2>{content}</section>\n'
        for place, heading, content in parts
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<a class="skip" href="#content">To the content</a>
<header><h1>{escape(title)}</h1><p class="quiet">{escape(about)}</p></header>
<nav aria-label="Sections"><ul>{links}</ul></nav>
<main id="content">
<noscript><p class="warning">The pictures need JavaScript; the tables tell the same.</p></noscript>
{body}</main>
<script>{get_plotlyjs()}</script>
<script type="application/json" id="figures">{_in_script(figures)}</script>
<script>{SCRIPT}</script>
</body>
</html>
"""


def _in_script(figures: dict[str, Figure]) -> str:
    """JSON that cannot end the element that it is in."""
    return json.dumps(figures, allow_nan=False).replace("<", "\\u003c")


def plot(name: str, caption: str, curves: Sequence[tuple[str, str]], table: str) -> str:
    """A place for a figure, boxes that show and hide its (name, colour) curves, and its table."""
    boxes = "".join(
        f'<label><input type="checkbox" checked data-figure="{name}" data-curve="{i}">'
        f'<span class="swatch" style="background: {colour}"></span>{escape(label)}</label>'
        for i, (label, colour) in enumerate(curves)
    )
    legend = f"<fieldset><legend>Show</legend>{boxes}</fieldset>" if len(curves) > 1 else ""
    figures = f"<details><summary>These figures as a table</summary>{table}</details>"
    return (
        f'<figure><figcaption id="{name}-caption">{escape(caption)}</figcaption>{legend}'
        f'<div class="plot" id="{name}" role="group" aria-labelledby="{name}-caption"></div>'
        f"{figures if table else ''}</figure>"
    )


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column names the rows; it scrolls where the page is narrow."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for first, *cells in rows
    )
    label = escape(caption)
    return (
        f'<p class="quiet">{label}</p><div class="wide" role="region" tabindex="0" '
        f'aria-label="{label}"><table aria-label="{label}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
