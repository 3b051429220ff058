"""The report of a sweep, made of small directories such as jobs leave behind."""

import csv
import json
import math
import re
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import Cli
from PIL import Image

from {{ cookiecutter.package_name }}.engine.sweep.report.contents import gather
from {{ cookiecutter.package_name }}.engine.sweep.report.curves import MOST_POINTS, Curve
from {{ cookiecutter.package_name }}.engine.sweep.report.groups import over_seeds
from {{ cookiecutter.package_name }}.engine.sweep.report.strategies import compare
from {{ cookiecutter.package_name }}.engine.sweep.report.write import write

Losses = list[float]
LOSSES = [2.0, 1.5, 1.2, 1.0]


def make_job(
    sweep: Path,
    number: int,
    *overrides: str,
    losses: Losses = LOSSES,
    config: dict[str, Any] | None = None,
    **facts: Any,
) -> Path:
    """A directory as a job leaves it; a fact such as val_acc=0.9 is the metric val/acc."""
    run = sweep / f"{number:02d}-job"
    (run / ".hydra").mkdir(parents=True)
    (run / ".hydra/overrides.yaml").write_text(yaml.safe_dump(list(overrides)))
    judged = {"monitor": "val/acc", "mode": "max"} | (config or {})
    (run / "config.yaml").write_text(yaml.safe_dump(judged))
    metrics = {"val/acc": facts.pop("val_acc")} if "val_acc" in facts else {}
    shown = {"status": "finished", "strategy": "single", "global_step": len(losses)}
    (run / "metrics.json").write_text(
        json.dumps(shown | {"seconds": 2.0, "samples_per_second": 64.0} | metrics | facts)
    )
    lines = ["step,epoch,train/loss,val/acc"]
    lines += [f"{step},{step // 2},{loss}," for step, loss in enumerate(losses)]
    lines += [f"{len(losses) - 1},1,,{value}" for value in metrics.values()]
    (run / "metrics.csv").write_text("\n".join(lines) + "\n")
    return run


def spreadsheet(folder: Path) -> list[dict[str, str]]:
    with (folder / "sweep.csv").open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def figures(folder: Path) -> dict[str, Any]:
    page = (folder / "sweep.html").read_text(encoding="utf-8")
    start = page.index('id="figures">') + len('id="figures">')

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON to a browser")

    found: dict[str, Any] = json.loads(
        page[start : page.index("</script>", start)], parse_constant=refuse
    )
    return found


class Elements(HTMLParser):
    """The elements of a page, with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_a_sweep_becomes_a_table_and_three_files(tmp_path: Path, cli: Cli) -> None:
    sweep = tmp_path / "runs/day/12-00-sweep"
    make_job(sweep, 1, "model=mlp", "optimizer.lr=0.001", val_acc=0.5, **{"test/acc": 0.4})
    make_job(sweep, 2, "model=mlp", "optimizer.lr=0.01", val_acc=0.9)
    failed = make_job(sweep, 10, "model=mlp", "optimizer.lr=9", status="failed", error="it broke")
    (failed / "failure.txt").write_text("Traceback: it broke")
    (sweep / "multirun.yaml").write_text("")
    (sweep / "sweep.yaml").write_text("command: python train.py -m optimizer.lr=0.001,0.01,9\n")

    outcome = cli("report.py", str(sweep))

    assert outcome.status == 0, outcome.err
    lines = outcome.out.splitlines()
    assert "3 jobs: 2 finished, 1 failed" in lines[0]
    head = next(line for line in lines if "status" in line)
    words = ["job", "lr", "status", "steps", "seconds", "samples/s", "val/acc", "test/acc"]
    assert head.split() == words
    assert max(map(len, lines[: lines.index(head) + 5])) <= 80
    rows = lines[lines.index(head) + 2 :]
    assert rows[0].split() == ["★", "2", "0.01", "finished", "4", "2.0", "64", "0.9000", "–"]
    assert rows[1].split()[0] == "1"
    assert rows[2].split()[:3] == ["10", "9", "failed"]
    assert "10 failed: it broke (traceback: runs/day/12-00-sweep/10-job/failure.txt)" in outcome.out
    assert [line["job"] for line in spreadsheet(sweep)] == ["2", "1", "10"]
    assert spreadsheet(sweep)[1]["test/acc"] == "0.4"
    assert spreadsheet(sweep)[2]["error"] == "it broke"
    assert spreadsheet(sweep)[0]["model"] == "mlp"
    assert (sweep / "sweep.png").read_bytes().startswith(b"\x89PNG")
    page = (sweep / "sweep.html").read_text(encoding="utf-8")
    assert "python train.py -m optimizer.lr=0.001,0.01,9" in page
    assert "All jobs have <code>model=mlp</code>" in page
    assert "Traceback: it broke" in page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no SWEEP_DIR was given"),
        (["nowhere"], "nowhere: there is no such directory"),
        (["."], ".: no job in it"),
    ],
)
def test_a_wrong_directory_is_one_clear_line(cli: Cli, arguments: list[str], words: str) -> None:
    outcome = cli("report.py", *arguments)

    assert outcome.status == 2
    assert outcome.out == ""
    assert outcome.err.startswith(f"error: {words}")
    assert outcome.err.count("\n") == 1


def test_several_sweeps_are_one_report(tmp_path: Path, cli: Cli) -> None:
    make_job(tmp_path / "a", 1, "optimizer.lr=0.1", val_acc=0.5)
    make_job(tmp_path / "b", 1, "optimizer.lr=0.2", val_acc=0.6)
    run = make_job(tmp_path, 7, "optimizer.lr=0.3", val_acc=0.7)

    outcome = cli("report.py", "a", "b", "a", run.name, "--to", "together/here")

    assert outcome.status == 0, outcome.err
    lines = spreadsheet(tmp_path / "together/here")
    assert [line["job"] for line in lines] == ["07-job", "b/1", "a/1"]


@pytest.mark.parametrize(("mode", "best"), [("max", "3"), ("min", "1")])
def test_best_is_first_in_either_direction(tmp_path: Path, mode: str, best: str) -> None:
    for number, value in enumerate((0.1, 0.2, 0.3), start=1):
        make_job(tmp_path, number, f"seed={number}", val_acc=value, config={"mode": mode})
    # It would be the best, had it not been stopped before its time; and one has no value.
    make_job(tmp_path, 4, "seed=4", val_acc=0.9 if mode == "max" else 0.0, status="pruned")
    make_job(tmp_path, 5, "seed=5", val_acc=math.nan, status="diverged", error="nan at step 3")

    jobs = write([tmp_path], tmp_path)

    assert jobs[0].name == best
    assert [job.name for job in jobs[-2:]] == ["4", "5"]
    assert jobs[-1].values == (None,)


def test_many_jobs_are_cut_in_the_terminal_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(1, 61):
        make_job(tmp_path, number, f"optimizer.lr={number / 1000}", val_acc=number / 100)

    write([tmp_path], tmp_path)

    out = capsys.readouterr().out
    assert out.count("finished") == 1 + 50
    assert "and 10 more in sweep.csv" in out
    assert len(spreadsheet(tmp_path)) == 60
    assert len(figures(tmp_path)["loss"]["data"]) == 60


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (["0", "1", "10"], ["0", "1", "10"]),
        (["2-x", "a"], ["1", "2"]),
        (["1-x", "01-y"], ["1", "2"]),
    ],
)
def test_every_job_has_a_number_of_its_own(
    tmp_path: Path, names: list[str], numbers: list[str]
) -> None:
    for name in names:
        make_job(tmp_path, 1, "optimizer.lr=1").rename(tmp_path / name)

    assert sorted(job.name for job in gather([tmp_path]).jobs) == numbers


def test_the_picture_is_sharp_enough_for_print(tmp_path: Path) -> None:
    for number in range(1, 5):
        overrides = [f"optimizer.lr={number // 3}", f"seed={number}", "+name=漢字$x$"]
        make_job(tmp_path, number, *overrides, val_acc=number / 10)

    write([tmp_path], tmp_path)

    with Image.open(tmp_path / "sweep.png") as picture:
        assert picture.info["dpi"] == pytest.approx((300, 300), abs=1)
        assert picture.width == 2700
        assert len(picture.convert("RGB").getcolors(10**7) or []) > 10


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


def test_seeds_become_mean_and_standard_deviation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    number = 0
    for rate, values in {"0.1": (0.5, 0.6, 0.7), "0.2": (0.9, 0.9)}.items():
        for seed, value in enumerate(values):
            number += 1
            make_job(tmp_path, number, f"optimizer.lr={rate}", f"seed={seed}", val_acc=value)
    make_job(tmp_path, 6, "optimizer.lr=0.2", "seed=2", status="failed", error="it broke")

    write([tmp_path], tmp_path)

    best, other = over_seeds(gather([tmp_path]))
    assert (best.label, str(best.objective(0))) == ("lr=0.2", "0.9 ± 0")
    spread = other.objective(0)
    assert spread is not None
    assert (spread.count, spread.mean, spread.deviation) == (
        3,
        pytest.approx(0.6),
        pytest.approx(0.1),
    )
    out = capsys.readouterr().out
    assert re.search(r"lr=0.2 +2 of 3 +0.9 ± 0", out)
    assert re.search(r"lr=0.1 +3 +0.6 ± 0.1", out)
    assert "0.6 ± 0.1" in (tmp_path / "sweep.html").read_text(encoding="utf-8")


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


def tear_metrics(run: Path) -> None:
    (run / "metrics.json").write_text('{"status": "fini')


def remove_metrics(run: Path) -> None:
    for name in ("metrics.json", "metrics.csv", "config.yaml"):
        (run / name).unlink()


def tear_lines(run: Path) -> None:
    lines = ["step,epoch,train/loss", "0,0,1.5", "1,0,inf", "x,,", "2,0,nan", "3,0,1e"]
    (run / "metrics.csv").write_text("\n".join(lines))


def no_loss(run: Path) -> None:
    (run / "metrics.csv").write_text("step,epoch,other\n0,0,1.5\n")


def write_bytes(run: Path) -> None:
    for name in ("metrics.json", "metrics.csv", "config.yaml", ".hydra/overrides.yaml"):
        (run / name).write_bytes(b"\xff\xfe\x00: [")


def not_a_number(run: Path) -> None:
    (run / "metrics.json").write_text('{"status": "running", "val/acc": NaN, "seconds": Infinity}')


def test_jobs_that_have_not_begun_are_counted(tmp_path: Path) -> None:
    make_job(tmp_path, 2, "optimizer.lr=2", val_acc=0.5)
    listed = [[f"optimizer.lr={lr}"] for lr in (1, 2, 3)]
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({"jobs": listed}))
    write([tmp_path], tmp_path)
    rows = {row["job"]: (row["optimizer.lr"], row["status"]) for row in spreadsheet(tmp_path)}
    assert rows == {"1": ("1", "not run"), "2": ("2", "finished"), "3": ("3", "not run")}


@pytest.mark.parametrize(
    ("damage", "status"),
    [
        (tear_metrics, "not run"),
        (remove_metrics, "not run"),
        (tear_lines, "finished"),
        (no_loss, "finished"),
        (write_bytes, "not run"),
        (not_a_number, "running"),
    ],
)
@pytest.mark.parametrize("others", [0, 1])
def test_half_a_job_is_reported(
    tmp_path: Path, damage: Callable[[Path], None], status: str, others: int
) -> None:
    judged = {"sweep": {"value": "best"}}
    damage(make_job(tmp_path, 1, "optimizer.lr=1", val_acc=0.5, config=judged))
    for number in range(2, 2 + others):
        make_job(tmp_path, number, "optimizer.lr=2", val_acc=0.9)

    jobs = write([tmp_path], tmp_path)

    assert {job.name: job.status for job in jobs}["1"] == status
    assert len(spreadsheet(tmp_path)) == 1 + others
    assert len(figures(tmp_path).get("parallel", {}).get("data", [])) == 2 * others
