"""Help, typos and refusals answer at once: none of them imports torch."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Cli, one_of_a_kind
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import OmegaConf

from onecurve.compat.of_hydra import ConfigLoaderImpl, Hydra, composed_once


@pytest.mark.parametrize(
    "stderr", one_of_a_kind(["2>/dev/full", "2>&-", ">&- 2>&-"], kept=["2>/dev/full", ">&- 2>&-"])
)
def test_a_refusal_that_nobody_hears_is_one(stderr: str, tmp_path: Path) -> None:
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(ROOT / 'train.py'))}"
    done = subprocess.run(["bash", "-c", f"{command} data.batch_size=0 {stderr}"], cwd=tmp_path)
    assert done.returncode == 2
    assert list(tmp_path.iterdir()) == []


ANSWERS = {
    "--help": 0, "--cfg job": 0, "strategy=fsdb": 1, "trainer.max_epoch=1": 1,
    "data.batch_size=0": 2, "strategy=single trainer.devices=2": 2,
}  # fmt: skip


@pytest.mark.parametrize("typed", one_of_a_kind(ANSWERS, kept=[*ANSWERS][::2]))
@pytest.mark.parametrize("script", one_of_a_kind(["train.py", "evaluate.py"], kept=["train.py"]))
def test_answers_without_torch(script: str, typed: str, tmp_path: Path) -> None:
    arguments = [*typed.split(), *["checkpoint=."] * (script == "evaluate.py")]
    status = ANSWERS[typed]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", str(ROOT / script), *arguments],
        capture_output=True, text=True, cwd=tmp_path, timeout=60,
    )  # fmt: skip
    assert done.returncode == status, done.stderr[-2000:]
    imported = {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if "|" in line}
    assert "hydra.main" in imported
    heavy = {"torch", "lightning", "torchvision", "numpy", "matplotlib", "rich"}
    assert imported.isdisjoint(heavy), imported & heavy
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def composed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A word for each configuration that Hydra composes from here on."""
    words: list[str] = []
    compose = ConfigLoaderImpl._load_configuration_impl

    def counted(loader: ConfigLoaderImpl, **options: Any) -> Any:
        words.append(options["run_mode"].name)
        return compose(loader, **options)

    monkeypatch.setattr(ConfigLoaderImpl, "_load_configuration_impl", counted)
    return words


@pytest.mark.parametrize("override", ["data.batch_size=0", "data.batch_size=0,8"])
def test_a_command_is_composed_once(cli: Cli, composed: list[str], override: str) -> None:
    assert cli("train.py", override).status != 0
    assert composed == ["RUN"]


@pytest.mark.parametrize("mode", RunMode)
@pytest.mark.parametrize("overrides", [["data.batch_size=8", "strategy=ddp"], ["hydra.mode=RUN"]])
def test_what_is_composed_once_is_what_hydra_composes(mode: RunMode, overrides: list[str]) -> None:
    def compose(hydra: Hydra) -> Any:
        given = [*overrides]
        if hydra.get_mode("train", given) is None:
            given.append(f"hydra.mode={mode.name}")
        return OmegaConf.to_container(hydra.compose_config("train", given, mode))

    with initialize_config_dir(str(ROOT / "configs"), version_base=None):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        expected = compose(hydra)
        with composed_once(mode):
            assert compose(hydra) == expected


IMPORTED = """
import importlib, sys
from onecurve.launch import agent, forkserver

assert "torch" in sys.modules and "lightning" not in sys.modules, "who starts ranks is none"
for name in forkserver.PRELOADED:
    importlib.import_module(name)
assert "lightning.pytorch" in sys.modules
assert not [name for name in sys.modules if name.startswith("scipy.")]
import scipy.signal
assert scipy.signal.windows.hann(3).tolist() == [0, 1, 0], "whoever asks for it has it"
from torchmetrics.audio import PermutationInvariantTraining
"""


def test_whoever_starts_ranks_imports_no_lightning_and_they_no_scipy() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
