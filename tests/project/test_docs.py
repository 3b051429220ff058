"""The commands in docs/ run, on small data and for a few steps."""

import re
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import yaml
from conftest import CONFIGS, TWO_STEPS

from onecurve.testing.runs import Cli

ROOT = CONFIGS.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
# Commands for several nodes, or for jobs side by side, need more than a laptop.
ELSEWHERE = ["HOST", "BUCKET", "torchrun", "srun", "sweep/launcher"]
if find_spec("onnxscript") is None or find_spec("onnxruntime") is None:
    ELSEWHERE.append("format=onnx")  # an extra


def jobs_of(sweep: Path) -> int:
    """The number of jobs that the command of a sweep makes."""
    record = yaml.safe_load((sweep / "sweep.yaml").read_text())
    trials = re.search(r"sweep\.trials=(\d+)", record["command"])
    return int(trials[1]) if trials else len(record["jobs"])


def blocks(language: str, *pages: Path) -> list[str]:
    text = "".join(page.read_text() for page in pages)
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


# Files in the pages: "In `tasks/vit.py`: ..." and a block.
FILES = {
    file: block
    for page in PAGES
    for file, block in re.findall(
        r"In\s`((?:tasks|loggers|configs)/[\w/]+\.\w+)`[^`]*\n\n```\w+\n(.*?)```",
        page.read_text(),
        re.DOTALL,
    )
}

LINES = [line for text in blocks("bash", *PAGES) for line in text.splitlines()]
LINES = [line.partition("  #")[0].strip() for line in LINES]
COMMANDS = [
    line
    for line in dict.fromkeys(LINES)
    if re.match(r"python \w+\.py\b|onecurve (?!docs)", line)
    and not any(word in line for word in ELSEWHERE)
]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project with the files of the examples in the pages."""
    copy = tmp_path / "project"
    shutil.copytree(CONFIGS, copy / "configs")
    for script in ROOT.glob("*.py"):
        shutil.copy(script, copy)
    for file, block in FILES.items():
        place = copy / re.sub(r"^(tasks|loggers)/", "example_", file)
        if file.startswith("configs/"):
            place = copy / file
            block = re.sub(r"_target_: \w+\.(tasks|loggers)\.", "_target_: example_", block)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(block)
    monkeypatch.syspath_prepend(str(copy))
    return copy


# Runs of commands before, which others read.
TRAINED: list[Path] = []


@pytest.mark.usefixtures("small_data")
@pytest.mark.parametrize("command", COMMANDS)
def test_command_runs(cli: Cli, project: Path, command: str) -> None:
    words = shlex.split(command)
    script, *arguments = words[1:] if words[0] == "python" else words
    made = 0 if {"--help", "--cfg", "resume=last"} & set(arguments) else 1
    is_report = arguments[:1] == ["report"]
    if is_report:
        sweep = cli("train.py", "-m", "seed=1,2", *TWO_STEPS).runs[0].parent
        arguments, made = ["report", str(sweep)], 0
    elif "DATE" in command or "resume=last" in command:
        if script == "train.py" or not TRAINED:
            first = cli("train.py", *TWO_STEPS)
            assert first.status == 0, first.err
            TRAINED.append(first.run)
        arguments = [word.replace("runs/DATE/TIME", str(TRAINED[-1])) for word in arguments]
    if script == "train.py" and not {"--help", "--cfg"} & set(arguments):
        # If a setting is given twice, the last one counts: the number of epochs in the page stays.
        typed = [word.partition("=")[0] for word in arguments]
        arguments += [few for few in TWO_STEPS if few.partition("=")[0] not in typed]
    outcome = cli(str(project / script), *arguments)
    assert outcome.status == 0, outcome.err
    if is_report:
        assert {"sweep.csv", "sweep.html"} <= {path.name for path in sweep.iterdir()}
    ended = [(run / "metrics.json").read_text() for run in outcome.runs]
    done = [text for text in ended if '"finished"' in text or '"pruned"' in text]
    assert len(done) == (jobs_of(outcome.runs[0].parent) if "-m" in arguments else made)


@pytest.mark.usefixtures("small_data")
def test_the_cell_of_a_notebook_runs(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    *_, cell = blocks("python", ROOT / "docs/project.md")
    saved = ["+callbacks=save_pretrained"] if "/pretrained" in cell else []
    run = cli("train.py", *TWO_STEPS, *saved).run.relative_to(tmp_path)
    monkeypatch.setattr(plt, "show", lambda: plt.savefig("shown.png"))
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setenv(name, "0")  # which a command takes back
    exec(cell.replace("runs/DATE/TIME", str(run)), {})
    plt.close("all")
    assert "plt" not in cell or (tmp_path / "shown.png").stat().st_size > 3000
