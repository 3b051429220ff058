"""Without Hydra and without the template: the README's scripts, a plain Trainer, and `launch`."""

import os
import re
import signal
import subprocess
import sys
from csv import DictReader
from pathlib import Path

import pytest
from conftest import ROUNDING, TESTS, largest_difference
from processes import Command, nothing_stays_of
from several_fits import Case, Small, fits

import onecurve

README = (TESTS.parent / "README.md").read_text()
SCRIPT, MOVE = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
_, TYPED = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
PYTHON, TORCHRUN = TYPED.splitlines()
# What tests say otherwise in the script.
STRATEGY = 'onecurve.Pipeline(schedule="interleaved_1f1b")'
DEVICES, STEPS = '"devices": 2', '"log_every_n_steps": 1'
START = "onecurve.launch(main, devices=2)"
CORE_ONLY = {
    "PYTHONPATH": os.pathsep.join(map(str, [TESTS / "hidden", *sys.path])),
    "HIDDEN": "hydra-core matplotlib omegaconf optuna pillow plotly tensorboard torchvision wandb",
}


def losses(folder: Path, command: str, changes: dict[str, str]) -> list[float]:
    """Every step's loss of the README's script in float64, with other words in places."""
    text = SCRIPT
    for old, new in {STEPS: f'{STEPS}, "precision": "64-true"', **changes}.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (folder / "script.py").write_text(text)
    typed(command, folder)
    (file,) = folder.glob("logs/**/metrics.csv")
    with file.open(newline="") as rows:
        return [float(row["train/loss"]) for row in DictReader(rows)]


def typed(command: str, folder: Path) -> None:
    """Run a command of the README, with nothing installed but what the library itself needs."""
    done = subprocess.run(
        [sys.executable, *command.split()[1:]], cwd=folder, capture_output=True, text=True,
        timeout=300, env={**os.environ, **CORE_ONLY},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of the README's script under Lightning's own strategy in one process."""
    alone = {STRATEGY: '"auto"', DEVICES: '"devices": 1', START: "main()"}
    return losses(tmp_path_factory.mktemp("plain"), PYTHON, alone)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "changes"),
    [
        pytest.param(PYTHON, {}, marks=pytest.mark.long),
        pytest.param(TORCHRUN, {STRATEGY: "onecurve.FSDP()"}, marks=pytest.mark.long),
        (PYTHON, {STRATEGY: "onecurve.DDP()", START: "main()"}),
    ],
    ids=["pipeline", "fsdp by torchrun", "ddp, whose second rank Lightning starts"],
)
def test_the_readme_script_has_the_losses_of_a_plain_trainer(
    command: str, changes: dict[str, str], plain: list[float], tmp_path: Path
) -> None:
    found = losses(tmp_path, command, changes)
    assert len(plain) == 14
    assert plain[-1] < plain[0] / 2
    assert largest_difference(found, plain) <= ROUNDING


@pytest.mark.long
@pytest.mark.slow
def test_the_readme_moves_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "move.py").write_text(MOVE)
    typed("python move.py", tmp_path)
    checkpoint = onecurve.read_checkpoint(tmp_path / "epoch2.ckpt")
    assert checkpoint["global_step"] == 14
    assert checkpoint["averages"].keys() == {"live", "swa"}


def test_a_strategy_that_cannot_be_is_rejected() -> None:
    one: Case = (Small, onecurve.Single(), {"devices": 1})
    found = onecurve.launch(fits, {"": one}, devices=2)[""]
    assert "Single needs one process, and torchrun started" in found
    with pytest.raises(onecurve.UserError, match="schedule='zvb': must be one of gpipe, 1f1b"):
        onecurve.Pipeline(schedule="zvb")


def what_a_rank_is(word: str) -> tuple[str, str, str]:
    print("rank", os.environ["RANK"], "says", word, flush=True)
    return word, os.environ["RANK"], os.environ["WORLD_SIZE"]


def test_launch_returns_what_rank_0_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert onecurve.launch(what_a_rank_is, "hello", logs=tmp_path) == ("hello", "0", "2")
    assert "rank 1 says hello" in (tmp_path / "logs" / "rank_1.log").read_text()
    # Of one rank, or in one, it is a call.
    assert onecurve.launch(os.getpid, devices=1) == os.getpid()
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert onecurve.launch(what_a_rank_is, "hello") == ("hello", "1", "2")


def fails_on_rank_1(folder: Path) -> None:
    (folder / str(os.getpid())).touch()
    if os.environ["RANK"] == "1":
        raise ValueError("the reason")
    signal.pause()


def refuses() -> None:
    raise onecurve.UserError("key=value: must be another")


def test_a_rank_that_fails_is_named_and_no_process_stays(tmp_path: Path) -> None:
    failed = r"(?s)^rank 1 failed\n.*in fails_on_rank_1.*\nValueError: the reason$"
    with pytest.raises(onecurve.RankFailed, match=failed):
        onecurve.launch(fails_on_rank_1, tmp_path)
    pids = [int(file.name) for file in tmp_path.iterdir()]
    assert pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with pytest.raises(onecurve.UserError, match=r"^key=value: must be another$"):
        onecurve.launch(refuses)
    with pytest.raises(onecurve.UserError, match=r"a rank cannot return a TextIOWrapper \(.*\);"):
        onecurve.launch(open, os.devnull)
    with pytest.raises(onecurve.UserError, match=r"lambda.* cannot be sent to the ranks"):
        onecurve.launch(lambda: None)


def test_a_call_outside_of_main_is_rejected(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text("import onecurve\n\nonecurve.launch(print)  # not beneath __name__\n")
    command = Command(tmp_path, str(script))
    _, err = command.communicate()
    assert command.returncode
    assert err.count("Traceback") == 1, err
    assert err.splitlines()[-1] == (
        "onecurve.errors.UserError: unguarded.py, line 3: starts ranks, each of which imports "
        'this script; write it beneath if __name__ == "__main__":'
    )
    assert nothing_stays_of(command.pid)


def test_importing_it_imports_neither_torch_nor_hydra() -> None:
    code = "import onecurve, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"torch", "lightning", "hydra", "numpy"}.isdisjoint(done.stdout.split())
    assert all(callable(getattr(onecurve, name)) for name in onecurve.__all__)


PRIVATE = re.compile(
    r"^\s*(?:from|import) (?:torch|lightning|torchmetrics|hydra)\b"
    r"[\w.]*(?:\._\w+| import [^#\n]*\b_\w+)",
    re.MULTILINE,
)


def test_private_names_of_others_are_imported_in_compat_alone() -> None:
    sources = Path(onecurve.__file__).parent
    found = [path for path in sources.rglob("*.py") if PRIVATE.search(path.read_text())]
    assert {path.parent.name for path in found} == {"compat"}
