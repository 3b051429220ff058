"""The page of a sweep: what is drawn, and that nothing in it can do harm."""

from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_sweep import LOSSES, figures, make_job

from onecurve.app.sweep.report import Table, compare_strategies, write_report
from onecurve.app.sweep.results import MOST_POINTS, read_sweep


class Elements(HTMLParser):
    """The elements of a page, with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_every_job_is_drawn(tmp_path: Path) -> None:
    for number, rate in enumerate(("1e-4", "1e-2", "1"), start=1):
        losses = [loss * number for loss in LOSSES]
        make_job(tmp_path, number, f"optimizer.lr={rate}", losses=losses, val_acc=0.1 * number)
    write_report(tmp_path)
    drawn = figures(tmp_path)
    names = ["1: lr=1e-4", "2: lr=1e-2", "3: lr=1"]
    assert [line["name"] for line in drawn["loss"]] == names
    assert drawn["loss"][0]["y"] == LOSSES
    # From what was reached to the learning rate, each from 0 below to 1 above.
    assert [line["y"] for line in drawn["parallel"][:3]] == [
        pytest.approx([height, height]) for height in (0, 0.5, 1)
    ]


def test_long_curves_are_thinned_but_for_the_steps_that_are_compared(tmp_path: Path) -> None:
    losses = [float(step) for step in range(10_000)]
    make_job(tmp_path, 1, losses=losses)
    (job,) = read_sweep(tmp_path).jobs
    curve = job.curves["train/loss"]
    assert MOST_POINTS <= len(curve) <= MOST_POINTS + 50
    assert curve[:50] == list(enumerate(losses[:50]))
    assert curve[-1][0] > 9_900


@pytest.fixture
def compared(tmp_path: Path) -> Callable[..., Table]:
    """The comparison of strategies in a sweep: one job of each, by its facts."""

    def of(**jobs: dict[str, Any]) -> Table:
        for number, (name, facts) in enumerate(jobs.items(), start=1):
            strategy = name.partition("_")[0]
            words = f"strategy={strategy}", f"seed={name.partition('_')[2]}"
            make_job(tmp_path, number, *words, strategy=strategy, **{"val_acc": 0.5, **facts})
        write_report(tmp_path)
        table = compare_strategies(read_sweep(tmp_path))
        assert table is not None
        return table

    return of


@pytest.mark.parametrize("difference", [1e-6, 1e-3])
def test_strategies_are_compared_with_single(
    tmp_path: Path,
    compared: Callable[..., Table],
    capsys: pytest.CaptureFixture[str],
    difference: float,
) -> None:
    jobs: dict[str, Any] = {}
    for seed in (0, 1):
        own = [loss + seed for loss in LOSSES]
        apart = [*own[:2], own[2] * (1 + difference * (1 + seed)), own[3]]
        memory = 100.0 * (1 + 2 * seed)
        jobs[f"ddp_{seed}"] = {"losses": apart, "seconds": 3.0, "peak_memory_mib": memory}
        jobs[f"single_{seed}"] = {"losses": own, "seconds": 2.0, "peak_memory_mib": memory + 100}
    assert compared(**jobs).rows == [
        ["single", "0.0e+00", "4", "500.0", "1.00", "400"],
        ["ddp", f"{2 * difference:.1e}", "4", "750.0", "1.50", "300"],
    ]
    # What is more than rounding of one step needs a word.
    page, out = (tmp_path / "sweep.html").read_text(encoding="utf-8"), capsys.readouterr().out
    assert ("trainer.precision=64-true" in page) == (difference > 1e-5)
    assert ("trainer.precision=64-true" in out) == (difference > 1e-5)


def test_without_single_the_first_strategy_takes_its_place(
    tmp_path: Path, compared: Callable[..., Table]
) -> None:
    compared(ddp={}, fsdp={})
    page = (tmp_path / "sweep.html").read_text(encoding="utf-8")
    assert "Strategies, compared with ddp" in page


def test_names_without_a_slash_are_compared_as_well(
    tmp_path: Path, compared: Callable[..., Table]
) -> None:
    compared(single={"val_f1": 0.5}, ddp={"val_f1": 0.5})
    for curves in tmp_path.glob("*/metrics.csv"):
        curves.write_text(curves.read_text().replace("train/loss", "train_loss"))
    sweep = read_sweep(tmp_path)
    table = compare_strategies(sweep)
    assert table is not None
    assert table.rows[1][1:3] == ["0.0e+00", str(len(LOSSES))]
    assert "val_f1" in sweep.metrics
    assert "seconds" not in sweep.metrics


def test_no_time_is_compared_with_a_reference_that_failed(compared: Callable[..., Table]) -> None:
    table = compared(single={"status": "failed", "seconds": 0.0}, ddp={"seconds": 3.0})
    assert table.heads == ["strategy", "loss difference", "in steps", "ms per step"]
    assert [[row[0], row[3]] for row in table.rows] == [["single", "–"], ["ddp", "750.0"]]


HOSTILE = "</script><script>alert(1)</script><img src='http://example.com/x.png'>"


def test_the_page_asks_for_nothing_and_takes_no_text_for_html(tmp_path: Path) -> None:
    make_job(tmp_path, 1, f"name={HOSTILE}", f"x.'\"<b>={HOSTILE * 20}", val_acc=0.5)
    make_job(tmp_path, 2, "name=$\\frac{1}", "+callbacks=[bold]", val_acc=0.4)
    make_job(tmp_path, 3, "name=<b>", "+callbacks=[a,b]", status="failed", error=HOSTILE)
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({"command": HOSTILE}))

    write_report(tmp_path)

    page = (tmp_path / "sweep.html").read_text(encoding="utf-8")
    drawn = figures(tmp_path)
    elements = Elements(page).found
    # Plotly, sorting, and a chart each.
    assert sum(tag == "script" for tag, _ in elements) == 2 + len(drawn)
    assert not {"img", "link", "iframe", "object", "b"} & {tag for tag, _ in elements}
    fetching = {"src", "href", "srcset", "data", "action"}
    assert not [one for one in elements if fetching & set(one[1])]
    assert "@import" not in page[: page.index("</style>")]
    assert "default-src 'none'" in page
    # Plotly would take a text in a chart for HTML.
    texts = str([drawn["loss"][0]["name"], drawn["parallel"][0]["text"]])
    assert "&lt;/script" in texts
    assert "<" not in texts.replace("<br>", "")
