"""What a comparison has found: a table, and a picture of it."""

from dataclasses import dataclass, field
from pathlib import Path

from .kinds import TO_DO
from .rows import Row, points
from .watch import LOSS, Curve


@dataclass
class Parity:
    """The numbers of a strategy beside those of a plain Trainer.

    Attributes:
        title: What was compared.
        rows: A line for each quantity.
        kinds: What the differences come from, most likely: keys of `kinds.TO_DO`.
        plain: The curves of the plain Trainer, by quantity.
        other: Those of the strategy.
    """

    title: str
    rows: list[Row] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    plain: dict[str, Curve] = field(default_factory=dict)
    other: dict[str, Curve] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """Whether no quantity is apart."""
        return all(row.step is None for row in self.rows)

    def table(self) -> str:
        """All lines, the first difference, what it likely comes from, and what to do."""
        width = max(len(row.quantity) for row in self.rows)
        lines = [f"{'':{width}}  absolute  relative"]
        for row in self.rows:
            end = "equal" if row.step is None else f"differs from step {row.step} on"
            lines.append(f"{row.quantity:{width}}  {row.absolute:8.1e}  {row.relative:8.1e}  {end}")
        if self.equal:
            return "\n".join([*lines, f"{self.title}: equal"])
        first = min((r for r in self.rows if r.step is not None), key=lambda row: row.step or 0)
        lines.append(f"{self.title}: first {first.quantity} in step {first.step}, {first.what}")
        return "\n".join([*lines, *(f"Likely {kind}: {TO_DO[kind]}." for kind in self.kinds)])

    def draw(self, path: str | Path) -> None:
        """Write a page with the curves of the loss, and all differences by step."""
        from plotly.subplots import make_subplots

        titles = ("loss", "relative difference")
        figure = make_subplots(rows=2, cols=1, shared_xaxes=True, subplot_titles=titles)
        for name, curves, dash in (("plain", self.plain, "solid"), ("strategy", self.other, "dot")):
            x, y = zip(*curves.get(LOSS) or [(0, 0.0)], strict=True)
            figure.add_scatter(x=x, y=y, name=name, line_dash=dash, row=1, col=1)
        for name, curve in self.plain.items():
            found = points(curve, self.other.get(name, []))
            x, y = zip(*((step, max(far, 1e-17)) for step, _, far in found), strict=True)
            figure.add_scatter(x=x, y=y, name=name, mode="lines+markers", row=2, col=1)
        figure.update_yaxes(type="log", exponentformat="power", row=2, col=1)
        figure.update_layout(title=self.title, template="plotly_white", height=800)
        figure.write_html(path)
