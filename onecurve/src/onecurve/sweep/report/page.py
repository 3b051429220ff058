"""sweep.html: one file that opens from disk, with nothing fetched from anywhere."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

from plotly.offline import get_plotlyjs

from ..directory import TRACEBACK
from .charts import charts_of
from .job_results import Job
from .sweep_results import SweepResults
from .tables import STAR, Table, job_table

PAGE = Path(__file__).with_name("page.html")
LAST_LETTERS = 6000
"""Of a traceback: its end says what happened."""


def write_page(sweep: SweepResults, tables: Sequence[Table], path: Path) -> None:
    """Write the page of the jobs, what failed, some other tables, and the charts."""
    charts = [
        figure.to_html(full_html=False, include_plotlyjs=False, div_id=name)
        for name, figure in charts_of(sweep).items()
    ]
    text = Template(PAGE.read_text(encoding="utf-8")).substitute(
        title=escape(sweep.title),
        plotly=get_plotlyjs(),
        introduction=_introduction(sweep),
        jobs=_table(job_table(sweep)),
        failures="\n".join(_failure(job) for job in sweep.jobs if job.failed),
        tables="\n".join(map(_table, tables)),
        charts="\n".join(charts),
    )
    # Half a character, from a file that was cut short, cannot be written otherwise.
    path.write_text(text, encoding="utf-8", errors="replace")


def _introduction(sweep: SweepResults) -> str:
    better = {"max": "more", "min": "less"}
    judged = [
        f"{each.name} ({each.value} value, {better[each.mode]} is better)"
        for each in sweep.objectives
    ]
    overrides = sweep.jobs[0].overrides.items()
    shared = [f"{key}={text}" for key, text in overrides if key not in sweep.keys]
    lines = [f"Judged by {' and '.join(judged)}."] if judged else []
    lines += [f"All jobs have {', '.join(shared)}."] if shared else []
    commands = "".join(f"<pre>{escape(command)}</pre>" for command in sweep.commands)
    return f"{commands}<p>{escape(' '.join(lines))}</p>"


def _failure(job: Job) -> str:
    reason = escape(f"{job.name} {job.status}: {job.error or 'no reason was written down'}")
    try:
        traceback = (job.directory / TRACEBACK).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"<p>{reason}</p>"
    end = escape(traceback[-LAST_LETTERS:])
    return f"<details><summary>{reason}</summary><pre>{end}</pre></details>"


def _table(table: Table) -> str:
    heads = "".join(f"<th><button>{escape(head)}</button></th>" for head in table.heads)
    rows = "\n".join(map(_row, table.rows))
    return (
        f"<h2>{escape(table.title)}</h2><table><thead><tr>{heads}</tr></thead>\n"
        f"<tbody>{rows}</tbody></table><p>{escape(table.note)}</p>"
    )


def _row(texts: Sequence[str]) -> str:
    kind = ' class="best"' if texts[0].startswith(STAR) else ""
    return f"<tr{kind}>{''.join(f'<td>{escape(text)}</td>' for text in texts)}</tr>"
