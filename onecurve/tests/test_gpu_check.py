"""`python -m gpu_check`, on a CPU: it compares, measures, and tells what did not pass."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gpu_check import check
from gpu_check.entries import TOLERANCES, Entry
from gpu_check.large import NAMES, PROFILE
from gpu_check.loops import BARE, LIGHTNING, OURS

# All but torch, Lightning and what the core of the library needs.
HIDDEN = "hydra-core matplotlib omegaconf pillow rich scikit-learn scipy tensorboard torchvision"


def found(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "gpu_check.json").read_text())
    return record


@pytest.mark.long
def test_a_machine_with_what_the_core_needs_alone_is_checked(tmp_path: Path) -> None:
    only = ["mlp ddp 32-true", "transformer pipeline bf16-true", "transformer tensor * 2 ranks"]
    path = os.pathsep.join(map(str, [Path(__file__).parent / "hidden", *sys.path]))
    done = subprocess.run(
        [sys.executable, "-m", "gpu_check", "--device", "cpu", "--out", ".", "--only", *only],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": path, "HIDDEN": HIDDEN},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    entries = {each["name"]: each for each in found(tmp_path)["entries"]}
    plain = [f"{task} plain 32-true on the CPU" for task in ("mlp", "transformer")]
    checked = [*only[:2], "transformer tensor 32-true 2 ranks"]
    assert [*entries] == [*plain, *checked]
    for name in checked:
        each, tolerance = entries[name], TOLERANCES[name.split()[2]][0]
        assert each["outcome"] == "equal"
        assert len(each["loss"]) == 8
        assert each["loss"][-1] != each["loss"][0]
        assert each["apart_from_cpu"] <= tolerance
    assert "| mlp ddp 32-true | equal |" in (tmp_path / "gpu_check.md").read_text()


@pytest.mark.slow
def test_what_does_not_pass_is_told_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fails = Entry("mlp", "ddp", "9-true")
    entries = [fails, Entry("mlp", "single", "bf16-true"), fails._replace(required=False)]
    monkeypatch.setattr(check, "matrix", lambda on_gpu: entries)
    arguments = ["--device", "cpu", "--out", str(tmp_path), "--only", "mlp *"]
    assert check.main(arguments) == 1
    outcomes = [each["outcome"] for each in found(tmp_path)["entries"]]
    assert outcomes == ["measured", "failed", "equal", "failed"]
    assert found(tmp_path)["failed"] == 1
    line = next(line for line in capsys.readouterr().out.splitlines() if "mlp ddp 9-true" in line)
    assert "9-true" in line.partition("failed: ")[2]
    page = (tmp_path / "gpu_check.md").read_text()
    assert page.count("- mlp ddp 9-true: failed: ") == 2
    assert page.count("(does not count)") == 1
    with pytest.raises(SystemExit, match="2"):
        check.main(["--only", "mlp deepspeed *", "--device", "cpu"])
    assert "--only mlp deepspeed *: matches no entry" in capsys.readouterr().err


@pytest.mark.long
def test_loops_are_measured_side_by_side(tmp_path: Path) -> None:
    arguments = ["--device", "cpu", "--out", str(tmp_path), "--turns", "1", "--profile"]
    chunked = "large, the loss in 8 chunks"
    assert check.main([*arguments, "--only", *NAMES, PROFILE, chunked]) == 0
    entries = {each["name"]: each for each in found(tmp_path)["entries"]}
    assert [*entries] == [*NAMES, PROFILE, chunked]
    for network in ("large", "resnet"):
        bare, *others = (entries[f"{network} {loop}"] for loop in (BARE, LIGHTNING, OURS))
        for each in others:
            # All train the same network on the same batches.
            assert each["final_loss"] == pytest.approx(bare["final_loss"], rel=1e-3)
            assert len(each["windows"]) == len(bare["windows"]) == 2
        # What is hooked into a layer is not compiled with it, for each shape of its parameters.
        assert 0 <= others[1]["graphs"] - bare["graphs"] <= 2
    ours = entries[f"large {OURS}"]
    assert ours["planned_bytes"] == pytest.approx(sum(ours["planned_bytes_of"].values()))
    assert entries[chunked]["final_loss"] == pytest.approx(ours["final_loss"], rel=1e-2)
    assert sum(entries[PROFILE]["shares"].values()) == pytest.approx(1, abs=0.1)
    page = (tmp_path / "gpu_check.md").read_text()
    assert page.count(f"| {BARE} | ") == page.count(f"| {LIGHTNING} | ") == 2
    assert f"| {chunked} | " in page
