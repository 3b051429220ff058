"""The report of a sweep: tables, a spreadsheet and a page, whatever its jobs have left behind."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Cli
from small_sweep import LOSSES, figures, make_job, spreadsheet

from onecurve.app.sweep.report import Table, compare_strategies, write_report
from onecurve.app.sweep.results import read_sweep


def page_of(sweep: Path) -> str:
    return (sweep / "sweep.html").read_text(encoding="utf-8")


def test_a_sweep_becomes_a_table_and_two_files(tmp_path: Path, cli: Cli) -> None:
    sweep = tmp_path / "runs/day/12-00-sweep"
    make_job(sweep, 1, "model=mlp", "optimizer.lr=0.001", val_acc=0.5, **{"test/acc": 0.4})
    make_job(sweep, 2, "model=mlp", "optimizer.lr=0.01", val_acc=0.9)
    failed = make_job(sweep, 3, "model=mlp", "optimizer.lr=9", status="failed", error="it broke")
    (failed / "failure.txt").write_text("Traceback: it broke")
    typed = "python train.py -m optimizer.lr=0.001,0.01,9,10"
    listed = [["model=mlp", f"optimizer.lr={lr}"] for lr in ("0.001", "0.01", "9", "10")]
    (sweep / "sweep.yaml").write_text(yaml.safe_dump({"command": typed, "jobs": listed}))
    outcome = cli("onecurve", "report", str(sweep))
    assert outcome.status == 0, outcome.err
    lines = outcome.out.splitlines()
    assert "4 jobs: 2 finished, 1 failed, 1 not run" in lines[0]
    head = next(line for line in lines if "status" in line)
    words = ["job", "lr", "status", "steps", "seconds", "samples/s", "val/acc", "test/acc"]
    assert head.split() == words
    assert max(map(len, lines[: lines.index(head) + 6])) <= 80
    rows = [line.split() for line in lines[lines.index(head) + 2 :]]
    assert rows[0] == ["★", "2", "0.01", "finished", "4", "2.0", "64", "0.9000", "–"]
    assert [row[0] for row in rows[1:4]] == ["1", "3", "4"]
    assert "3 failed: it broke (traceback: runs/day/12-00-sweep/03-job/failure.txt)" in outcome.out
    best, second, last, not_run = spreadsheet(sweep)
    assert [line["job"] for line in (best, second, last)] == ["2", "1", "3"]
    assert (second["test/acc"], last["error"], best["model"]) == ("0.4", "it broke", "mlp")
    assert (not_run["optimizer.lr"], not_run["status"]) == ("10", "not run")
    for shown in (typed, "All jobs have model=mlp.", "Traceback: it broke"):
        assert shown in page_of(sweep)


@pytest.mark.parametrize(("mode", "best"), [("max", "3"), ("min", "1")])
def test_best_is_first_in_either_direction(tmp_path: Path, mode: str, best: str) -> None:
    for number, value in enumerate((0.1, 0.2, 0.3), start=1):
        make_job(tmp_path, number, f"seed={number}", val_acc=value, config={"mode": mode})
    # It would be the best, had it not been stopped before its time; and one has no value.
    make_job(tmp_path, 4, "seed=4", val_acc=0.9 if mode == "max" else 0.0, status="pruned")
    make_job(tmp_path, 5, "seed=5", val_acc=math.nan, status="diverged", error="nan at step 3")
    jobs = write_report(tmp_path).ranked
    assert jobs[0].name == best
    assert [job.name for job in jobs[-2:]] == ["4", "5"]
    assert jobs[-1].value is None


def test_many_jobs_are_drawn_and_are_cut_in_the_terminal_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(1, 61):
        make_job(tmp_path, number, f"optimizer.lr={number / 1000}", val_acc=number / 100)
    write_report(tmp_path)
    out = capsys.readouterr().out
    assert out.count("finished") == 1 + 50
    assert "and 10 more in sweep.csv" in out
    assert len(spreadsheet(tmp_path)) == 60
    drawn = figures(tmp_path)
    assert len(drawn["loss"]) == 60
    assert (drawn["loss"][0]["name"], drawn["loss"][0]["y"]) == ("1: lr=0.001", LOSSES)
    # From what was reached to the learning rate, each from 0 below to 1 above.
    heights = [drawn["parallel"][number]["y"] for number in (0, 59)]
    assert heights == [pytest.approx([0, 0]), pytest.approx([1, 1])]


RECORDS = ("metrics.json", "metrics.csv", "config.yaml")
NO_TEXT = dict.fromkeys((*RECORDS, ".hydra/overrides.yaml"), b"\xff\xfe\x00: [")
LINES = b"step,epoch,train/loss\n0,0,1.5\n1,0,inf\nx,,\n2,0,nan\n3,0,1e"
# What is in some of its files, or None where one is gone, and what the job is then.
DAMAGED: list[tuple[Mapping[str, bytes | None], str]] = [
    ({"metrics.json": b'{"status": "fini'}, "not run"),
    (dict.fromkeys(RECORDS), "not run"),
    ({"metrics.csv": LINES}, "finished"),
    ({"metrics.csv": b"step,epoch,other\n0,0,1.5\n"}, "finished"),
    (NO_TEXT, "not run"),
    ({"metrics.json": b'{"status": "running", "val/acc": NaN, "seconds": Infinity}'}, "running"),
]


def test_half_a_job_is_reported(tmp_path: Path) -> None:
    for number, (files, status) in enumerate(DAMAGED, start=1):
        for sweep in (tmp_path / f"alone_{number}", tmp_path / "all"):
            run = make_job(sweep, number, f"optimizer.lr={number}", val_acc=0.5)
            for name, content in files.items():
                (run / name).unlink() if content is None else (run / name).write_bytes(content)
            jobs = {job.name: job.status for job in write_report(sweep).jobs}
            assert jobs[str(number)] == status
            assert len(spreadsheet(sweep)) == len(jobs)
    # A line for each of the two jobs that have a value.
    assert len(figures(tmp_path / "all")["parallel"]) == 2


def test_seeds_become_mean_and_standard_deviation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = [(0.1, 0, 0.5), (0.1, 1, 0.6), (0.1, 2, 0.7), (0.2, 0, 0.9), (0.2, 1, 0.9)]
    for number, (rate, seed, value) in enumerate(values):
        make_job(tmp_path, number, f"optimizer.lr={rate}", f"seed={seed}", val_acc=value)
    make_job(tmp_path, 6, "optimizer.lr=0.2", "seed=2", status="failed", error="it broke")
    write_report(tmp_path)
    out = capsys.readouterr().out
    assert re.search(r"lr=0.2 +2 of 3 +0.9 ± 0", out)
    assert re.search(r"lr=0.1 +3 +0.6 ± 0.1", out)
    assert "0.6 ± 0.1" in page_of(tmp_path)


def compared(sweep: Path, loss: str = "train/loss", **jobs: dict[str, Any]) -> Table:
    """The comparison of strategies in a sweep: one job of each, by its facts."""
    for number, (name, facts) in enumerate(jobs.items(), start=1):
        strategy, _, seed = name.partition("_")
        words = f"strategy={strategy}", f"seed={seed}"
        run = make_job(sweep, number, *words, strategy=strategy, **{"val_acc": 0.5, **facts})
        curves = run / "metrics.csv"
        curves.write_text(curves.read_text().replace("train/loss", loss))
    write_report(sweep)
    table = compare_strategies(read_sweep(sweep))
    assert table is not None
    return table


@pytest.mark.parametrize("difference", [1e-6, 1e-3])
def test_strategies_are_compared_with_single(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], difference: float
) -> None:
    jobs: dict[str, Any] = {}
    for seed in (0, 1):
        own = [loss + seed for loss in LOSSES]
        apart = [*own[:2], own[2] * (1 + difference * (1 + seed)), own[3]]
        memory = 100.0 * (1 + 2 * seed)
        jobs[f"ddp_{seed}"] = {"losses": apart, "seconds": 3.0, "peak_memory_mib": memory}
        jobs[f"single_{seed}"] = {"losses": own, "seconds": 2.0, "peak_memory_mib": memory + 100}
    assert compared(tmp_path, **jobs).rows == [
        ["single", "0.0e+00", "4", "500.0", "1.00", "400"],
        ["ddp", f"{2 * difference:.1e}", "4", "750.0", "1.50", "300"],
    ]
    # What is more than rounding of one step needs a word.
    for shown in (page_of(tmp_path), capsys.readouterr().out):
        assert ("trainer.precision=64-true" in shown) == (difference > 1e-5)


def test_strategies_are_compared_with_what_there_is(tmp_path: Path) -> None:
    """Without single, with names of metrics without a slash."""
    table = compared(tmp_path / "a", "train_loss", ddp={"val_f1": 0.5}, fsdp={"val_f1": 0.5})
    assert "Strategies, compared with ddp" in page_of(tmp_path / "a")
    assert table.rows[1][1:3] == ["0.0e+00", str(len(LOSSES))]
    assert "val_f1" in read_sweep(tmp_path / "a").metrics


HOSTILE = "</script><script>alert(1)</script><img src='http://example.com/x.png'>"


def test_the_page_asks_for_nothing_and_takes_no_text_for_html(tmp_path: Path) -> None:
    """What a browser makes of it is in the template's tests/browser."""
    make_job(tmp_path, 1, f"name={HOSTILE}", f"x.'\"<b>={HOSTILE * 20}", val_acc=0.5)
    make_job(tmp_path, 2, "name=$\\frac{1}", "+callbacks=[bold]", val_acc=0.4)
    make_job(tmp_path, 3, "name=<b>", "+callbacks=[a,b]", status="failed", error=HOSTILE)
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({"command": HOSTILE}))
    write_report(tmp_path)
    page, drawn = page_of(tmp_path), figures(tmp_path)
    assert "default-src 'none'" in page
    assert "alert(1)" in page
    assert "<script>alert(1)" not in page
    assert "<img src='http" not in page
    # Plotly would take a text in a chart for HTML.
    texts = str([drawn["loss"][0]["name"], drawn["parallel"][0]["text"]])
    assert "&lt;/script" in texts
    assert "<" not in texts.replace("<br>", "")
