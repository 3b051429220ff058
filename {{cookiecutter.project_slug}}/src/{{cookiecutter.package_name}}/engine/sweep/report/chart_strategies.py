"""What each strategy costs, as bars."""

from collections.abc import Sequence

from plotly.subplots import make_subplots

from . import colors
from .charts import Chart, safe
from .overrides import shorter
from .strategies import Comparison


def chart(rows: Sequence[Comparison]) -> Chart | None:
    """Loss difference, time per step and memory of each strategy."""
    if not rows:
        return None
    reference = rows[0].reference
    panels = {
        f"loss difference from {reference}": [row.difference or None for row in rows],
        "ms per step": [row.seconds_per_step and 1000 * row.seconds_per_step for row in rows],
        "peak memory, MiB": [row.memory for row in rows],
    }
    panels = {name: values for name, values in panels.items() if any(values)}
    if not panels:
        return None
    titles = [safe(name) for name in panels]
    figure = make_subplots(1, len(panels), subplot_titles=titles, horizontal_spacing=0.09)
    for column, (name, values) in enumerate(panels.items(), start=1):
        figure.add_bar(
            x=[safe(shorter(row.strategy)) for row in rows],
            y=values,
            marker={"color": [colors.PALETTE[index % 10] for index in range(len(rows))]},
            hovertemplate="%{x}: %{y:.4g}<extra></extra>",
            row=1,
            col=column,
        )
        if name.startswith("loss"):
            figure.update_yaxes(type="log", exponentformat="power", row=1, col=column)
    figure.update_layout(showlegend=False, margin={"t": 30})
    return Chart("strategies", "", "", figure, height=320)
