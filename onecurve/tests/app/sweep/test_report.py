"""The table of a sweep, and the spreadsheet beside it, whatever its jobs have left behind."""

import math
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from conftest import Cli
from small_sweep import figures, make_job, spreadsheet

from onecurve.app.sweep.report import write_report
from onecurve.app.sweep.results import read_sweep


def test_a_sweep_becomes_a_table_and_two_files(tmp_path: Path, cli: Cli) -> None:
    sweep = tmp_path / "runs/day/12-00-sweep"
    make_job(sweep, 1, "model=mlp", "optimizer.lr=0.001", val_acc=0.5, **{"test/acc": 0.4})
    make_job(sweep, 2, "model=mlp", "optimizer.lr=0.01", val_acc=0.9)
    failed = make_job(sweep, 10, "model=mlp", "optimizer.lr=9", status="failed", error="it broke")
    (failed / "failure.txt").write_text("Traceback: it broke")
    (sweep / "multirun.yaml").write_text("")
    (sweep / "sweep.yaml").write_text("command: python train.py -m optimizer.lr=0.001,0.01,9\n")
    outcome = cli("onecurve", "report", str(sweep))
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
    best, second, last = spreadsheet(sweep)
    assert [line["job"] for line in (best, second, last)] == ["2", "1", "10"]
    assert (second["test/acc"], last["error"], best["model"]) == ("0.4", "it broke", "mlp")
    page = (sweep / "sweep.html").read_text(encoding="utf-8")
    typed = "python train.py -m optimizer.lr=0.001,0.01,9"
    for shown in (typed, "All jobs have model=mlp.", "Traceback: it broke"):
        assert shown in page


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


def test_many_jobs_are_cut_in_the_terminal_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(1, 61):
        make_job(tmp_path, number, f"optimizer.lr={number / 1000}", val_acc=number / 100)
    write_report(tmp_path)
    out = capsys.readouterr().out
    assert out.count("finished") == 1 + 50
    assert "and 10 more in sweep.csv" in out
    assert len(spreadsheet(tmp_path)) == 60
    assert len(figures(tmp_path)["loss"]) == 60


def test_a_job_is_called_by_its_number(tmp_path: Path) -> None:
    for name in ("0", "1", "10", "02-x", "a"):
        make_job(tmp_path, 1, "optimizer.lr=1").rename(tmp_path / name)
    assert sorted(job.name for job in read_sweep(tmp_path).jobs) == ["0", "1", "10", "2", "a"]


def test_what_no_job_has_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As of jobs that compare strategies in another way, and only say what they found."""
    for number, strategy in enumerate(("ddp", "fsdp"), start=1):
        run = make_job(tmp_path, number, f"strategy={strategy}")
        (run / "metrics.json").write_text('{"status": "finished"}')
        (run / "metrics.csv").unlink()
    write_report(tmp_path)
    out, page = capsys.readouterr().out, (tmp_path / "sweep.html").read_text(encoding="utf-8")
    head = next(line for line in out.splitlines() if "status" in line)
    assert head.split() == ["job", "strategy", "status"]
    assert "–" not in out
    assert "compared with" not in out + page[page.index("<body") :]
    assert page.count("<th>") == 3


def test_jobs_that_have_not_begun_are_counted(tmp_path: Path) -> None:
    make_job(tmp_path, 2, "optimizer.lr=2", val_acc=0.5)
    listed = [[f"optimizer.lr={lr}"] for lr in (1, 2, 3)]
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({"jobs": listed}))
    write_report(tmp_path)
    rows = {row["job"]: (row["optimizer.lr"], row["status"]) for row in spreadsheet(tmp_path)}
    assert rows == {"1": ("1", "not run"), "2": ("2", "finished"), "3": ("3", "not run")}


RECORDS = ("metrics.json", "metrics.csv", "config.yaml")
NO_TEXT = dict.fromkeys((*RECORDS, ".hydra/overrides.yaml"), b"\xff\xfe\x00: [")
LINES = b"step,epoch,train/loss\n0,0,1.5\n1,0,inf\nx,,\n2,0,nan\n3,0,1e"
FACTS = b'{"status": "running", "val/acc": NaN, "seconds": Infinity}'
# What is in some of its files, or None where one is gone, and what the job is then.
DAMAGED: dict[str, tuple[Mapping[str, bytes | None], str]] = {
    "torn metrics": ({"metrics.json": b'{"status": "fini'}, "not run"),
    "no metrics": (dict.fromkeys(RECORDS), "not run"),
    "torn lines": ({"metrics.csv": LINES}, "finished"),
    "no loss": ({"metrics.csv": b"step,epoch,other\n0,0,1.5\n"}, "finished"),
    "no text": (NO_TEXT, "not run"),
    "no number": ({"metrics.json": FACTS}, "running"),
}


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("others", [0, 1])
def test_half_a_job_is_reported(tmp_path: Path, damage: str, others: int) -> None:
    run = make_job(tmp_path, 1, "optimizer.lr=1", val_acc=0.5)
    files, status = DAMAGED[damage]
    for name, content in files.items():
        (run / name).unlink() if content is None else (run / name).write_bytes(content)
    for number in range(2, 2 + others):
        make_job(tmp_path, number, "optimizer.lr=2", val_acc=0.9)
    jobs = write_report(tmp_path).ranked
    assert {job.name: job.status for job in jobs}["1"] == status
    assert len(spreadsheet(tmp_path)) == 1 + others
    # A line for each job that has a value.
    complete = sum(job.finished and job.value is not None for job in jobs)
    assert len(figures(tmp_path).get("parallel", [])) == (complete if complete > 1 else 0)


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
    assert "0.6 ± 0.1" in (tmp_path / "sweep.html").read_text(encoding="utf-8")
