"""The page and the picture of a sweep: what is drawn, and that nothing in it can do harm."""

import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from small_sweep import LOSSES, figures, make_job

from {{ cookiecutter.package_name }}.engine.sweep.report.contents import gather
from {{ cookiecutter.package_name }}.engine.sweep.report.curves import MOST_POINTS, Curve
from {{ cookiecutter.package_name }}.engine.sweep.report.strategies import compare
from {{ cookiecutter.package_name }}.engine.sweep.report.write import write


class Elements(HTMLParser):
    """The elements of a page, with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_picture_is_sharp_enough_for_print(tmp_path: Path) -> None:
    for number in range(1, 5):
        overrides = [f"optimizer.lr={number // 3}", f"seed={number}", "+name=漢字$x$"]
        make_job(tmp_path, number, *overrides, val_acc=number / 10)

    write([tmp_path], tmp_path)

    with Image.open(tmp_path / "sweep.png") as picture:
        assert picture.info["dpi"] == pytest.approx((300, 300), abs=1)
        assert picture.width == 2700
        assert len(picture.convert("RGB").getcolors(10**7) or []) > 10


def test_every_job_is_drawn(tmp_path: Path) -> None:
    for number, rate in enumerate(("1e-4", "1e-2", "1"), start=1):
        make_job(tmp_path, number, f"optimizer.lr={rate}", val_acc=0.1 * number)

    write([tmp_path], tmp_path)

    drawn = figures(tmp_path)
    assert {trace["meta"] for trace in drawn["loss"]["data"]} == {"1", "2", "3"}
    # Learning rates are spread by their logarithm, the objective as it is.
    lines = {trace["meta"]: trace["y"] for trace in drawn["parallel"]["data"]}
    assert lines["1"] == [0.0, 0.0]
    assert lines["2"] == [pytest.approx(0.5), pytest.approx(0.5)]
    assert lines["3"] == [1.0, 1.0]


def test_long_curves_are_thinned() -> None:
    steps = np.arange(10_000, dtype=np.float64)

    thin = Curve(steps, steps, steps).thinned()

    assert len(thin) == MOST_POINTS
    assert (thin.steps[0], thin.steps[-1]) == (0, 9_999)


def test_two_objectives_have_a_pareto_front(tmp_path: Path) -> None:
    judged = {"sweep": {"objective": ["val/acc", "seconds"], "direction": ["maximize", "minimize"]}}
    for number, (accuracy, seconds) in enumerate([(0.9, 9.0), (0.8, 9.5), (0.7, 1.0)], start=1):
        make_job(
            tmp_path, number, f"seed={number}", val_acc=accuracy, seconds=seconds, config=judged
        )

    write([tmp_path], tmp_path)

    assert gather([tmp_path]).best == {"1", "3"}
    beaten, front = figures(tmp_path)["pareto"]["data"]
    assert (beaten["x"], beaten["y"]) == ([0.8], [9.5])
    assert (front["x"], front["y"]) == ([0.7, 0.9], [1.0, 9.0])


def test_strategies_are_compared_with_single(tmp_path: Path) -> None:
    number = 0
    for seed in (0, 1):
        own = [loss + seed for loss in LOSSES]
        for strategy, scale, seconds in (("ddp", 1 + 1e-6 * (1 + seed), 3.0), ("single", 1.0, 2.0)):
            number += 1
            make_job(
                tmp_path,
                number,
                f"strategy={strategy}",
                f"seed={seed}",
                losses=[*own[:2], own[2] * scale, own[3]],
                val_acc=0.5,
                strategy=strategy,
                seconds=seconds,
                peak_memory_mib=100.0 * number,
            )

    write([tmp_path], tmp_path)

    single, ddp = compare(gather([tmp_path]))
    assert (single.strategy, single.difference, single.ratio) == ("single", 0.0, 1.0)
    assert (ddp.strategy, ddp.jobs, ddp.steps) == ("ddp", 2, 8)
    assert ddp.difference == pytest.approx(2e-6, rel=1e-3)
    assert ddp.seconds_per_step == pytest.approx(0.75)
    assert (ddp.ratio, ddp.memory) == (pytest.approx(1.5), 300.0)
    assert len(figures(tmp_path)["strategies"]["data"]) == 3


def test_without_single_the_first_strategy_takes_its_place(tmp_path: Path) -> None:
    for number, strategy in enumerate(("ddp", "fsdp"), start=1):
        make_job(tmp_path, number, f"strategy={strategy}", strategy=strategy, val_acc=0.5)

    write([tmp_path], tmp_path)

    assert [row.reference for row in compare(gather([tmp_path]))] == ["ddp", "ddp"]
    page = (tmp_path / "sweep.html").read_text(encoding="utf-8")
    assert "No job ran under single" in page


def test_a_search_shows_importance_and_history(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    study = optuna.create_study(
        study_name="sweep", storage=f"sqlite:///{tmp_path}/study.db", direction="maximize"
    )
    for number, rate in enumerate((0.3, 0.1, 0.4, 0.2), start=1):
        trial = study.ask({"optimizer.lr": optuna.distributions.FloatDistribution(0, 1)})
        study.tell(trial, rate)
        make_job(tmp_path, number, f"optimizer.lr={rate}", f"sweep.trial={number}", val_acc=rate)
    before = (tmp_path / "study.db").read_bytes()

    write([tmp_path], tmp_path)

    drawn = figures(tmp_path)
    assert drawn["importance-0"]["data"][0]["y"] == ["optimizer.lr"]
    best = drawn["history"]["data"][-1]
    assert best["name"] == "best so far"
    assert gather([tmp_path]).keys == ["optimizer.lr"]
    assert (tmp_path / "study.db").read_bytes() == before


def test_without_optuna_a_sentence_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    (tmp_path / "study.db").write_bytes(b"")
    make_job(tmp_path, 1, "optimizer.lr=1", val_acc=0.5)

    write([tmp_path], tmp_path)

    assert "Optuna is not installed" in (tmp_path / "sweep.html").read_text(encoding="utf-8")


def test_a_study_that_cannot_be_read_is_no_reason_to_fail(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    (tmp_path / "study.db").write_bytes(b"no database")
    make_job(tmp_path, 1, "optimizer.lr=1", val_acc=0.5)

    write([tmp_path], tmp_path)

    assert "cannot be computed" in (tmp_path / "sweep.html").read_text(encoding="utf-8")


HOSTILE = "</script><script>alert(1)</script><img src='http://example.com/x.png'>"


def test_the_page_asks_for_nothing_and_takes_no_text_for_html(tmp_path: Path) -> None:
    make_job(tmp_path, 1, f"name={HOSTILE}", f"x.'\"<b>={HOSTILE * 20}", val_acc=0.5)
    make_job(tmp_path, 2, "name=$\\frac{1}", "+callbacks=[bold]", status="failed", error=HOSTILE)
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({"command": ["train.py", HOSTILE]}))

    write([tmp_path], tmp_path)

    page = (tmp_path / "sweep.html").read_text(encoding="utf-8")
    elements = Elements(page).found
    assert sum(tag == "script" for tag, _ in elements) == 3
    assert not {"img", "link", "iframe", "object", "b"} & {tag for tag, _ in elements}
    fetching = {"src", "href", "srcset", "data", "action"}
    assert not [one for one in elements if fetching & set(one[1])]
    assert "@import" not in page[: page.index("</style>")]
    assert "default-src 'none'" in page
    assert figures(tmp_path)["parallel"]["data"]
