"""sweep.html: one file that opens from disk, with nothing fetched from anywhere."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

from plotly.offline import get_plotlyjs

from . import chart_parallel, chart_search, chart_strategies, charts, page_tables
from .charts import Chart
from .contents import Contents
from .groups import Configuration
from .strategies import Comparison

HERE = Path(__file__).parent


def write(
    contents: Contents,
    seeds: Sequence[Configuration],
    strategies: Sequence[Comparison],
    path: Path,
) -> None:
    """Write the file."""
    found = [
        charts.loss_curves(contents),
        *charts.objective_curves(contents),
        chart_parallel.chart(contents),
        chart_search.history(contents),
        chart_search.pareto(contents),
        *chart_search.importance(contents),
    ]
    compared = chart_strategies.chart(strategies)
    drawn = [chart for chart in [compared, *found] if chart is not None]
    body = [
        page_tables.jobs(contents),
        page_tables.failures(contents),
        page_tables.seeds(contents, seeds),
        page_tables.strategies(strategies),
        *map(_section, drawn),
    ]
    text = Template(_read("page.html")).substitute(
        title=escape(contents.title),
        introduction=_introduction(contents),
        body="\n".join(filter(None, body)),
        figures=_json(drawn),
        style=_read("page.css"),
        plotly=get_plotlyjs(),
        script=_read("page.js"),
    )
    # Half a character, from a file that was cut short, cannot be written otherwise.
    path.write_text(text, encoding="utf-8", errors="replace")


def _section(chart: Chart) -> str:
    drawing = (
        f'<div class="scroll"><div class="chart" id="{chart.name}" style="'
        f'min-width: {chart.least_width}px; height: {chart.height}px"></div></div>'
        if chart.figure is not None
        else ""
    )
    heading = f"<h2>{escape(chart.heading)}</h2>" if chart.heading else ""
    note = f'<p class="note">{escape(chart.note)}</p>' if chart.note else ""
    kind = "wide" if chart.wide else "half"
    return f'<section class="{kind}">{heading}{note}{drawing}</section>'


def _json(drawn: Sequence[Chart]) -> str:
    # Plotly writes "<" as an escape, so that no text can end the script element.
    figures = [
        f'"{chart.name}": {chart.figure.to_json()}' for chart in drawn if chart.figure is not None
    ]
    return "{" + ",\n".join(figures) + "}"


def _introduction(contents: Contents) -> str:
    lines = [f"<p>{escape(contents.counts)}.{_judged(contents)}</p>"]
    lines += [f"<pre>{escape(command)}</pre>" for command in contents.commands]
    if contents.shared:
        shared = ", ".join(f"{key}={text}" for key, text in contents.shared.items())
        lines.append(f"<p>All jobs have <code>{escape(shared)}</code>.</p>")
    return "\n".join(lines)


def _judged(contents: Contents) -> str:
    if not contents.objectives:
        return ""
    said = {"max": "more", "min": "less"}
    names = [
        f"<code>{escape(each.name)}</code> ({'best' if each.value == 'best' else 'last'} value, "
        f"{said[each.mode]} is better)"
        for each in contents.objectives
    ]
    return f" Judged by {' and '.join(names)}."


def _read(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")
