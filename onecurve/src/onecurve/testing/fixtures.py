"""A plugin of pytest; in `conftest.py`: ``pytest_plugins = ["onecurve.testing.fixtures"]``."""

import copy
import io
import os
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from ..compat.of_hydra import defaults_list as defaults_lists
from .runs import Cli, Outcome, run_directories, run_script


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run tests of a file that share runs in one worker, with ``--dist loadgroup``."""
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            if "once" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.xdist_group(item.path.name))


@pytest.fixture(autouse=True, scope="session")
def _runs_in_current_folder() -> Iterator[None]:
    """Write runs to the current folder: parallel tests would share the project's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROJECT_ROOT", ".")
        yield


@pytest.fixture(autouse=True, scope="session")
def _faster_composition() -> Iterator[None]:
    """Read each file once: reading is half of a short test where hundreds of them are composed."""
    with pytest.MonkeyPatch.context() as patch:
        # Hydra prepares interpolations for the defaults of each file, but few have any.
        patch.setattr(defaults_lists, "_create_interpolation_map", _map_if_needed)
        patch.setattr(OmegaConf, "load", _Loaded(OmegaConf.load))
        yield


@pytest.fixture(scope="session")
def scripts(pytestconfig: pytest.Config) -> Path:
    """The folder of train.py and the other scripts: that of pytest's configuration."""
    return pytestconfig.rootpath


@pytest.fixture
def cli(
    scripts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Cli:
    """Run a script with arguments in an empty folder: ``cli("train.py", "strategy=ddp")``."""
    monkeypatch.chdir(tmp_path)

    def run(script: str, *arguments: str) -> Outcome:
        # A test may have changed the current folder.
        folder = Path.cwd()
        before = set(run_directories(folder))
        capfd.readouterr()
        status = run_script(scripts / script, *arguments)
        out, err = capfd.readouterr()
        made = [path for path in run_directories(folder) if path not in before]
        return Outcome(status, out, err, made)

    return run


@pytest.fixture(scope="module")
def once(scripts: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Training runs that several tests of a file share: ``once("strategy=ddp")``.

    Each is run when it is first requested, and must succeed. Returns its directory.
    """
    folder = tmp_path_factory.mktemp("once")
    made: dict[tuple[str, ...], Path] = {}

    def run(*arguments: str) -> Path:
        if arguments not in made:
            with chdir(folder):
                status = run_script(scripts / "train.py", *arguments)
            assert status == 0, f"train.py {' '.join(arguments)}"
            made[arguments] = run_directories(folder)[-1]
        return made[arguments]

    return run


def _rank_variables() -> dict[str, str]:
    names = ("RANK", "LOCAL_", "NODE_", "WORLD_", "MASTER_", "SLURM_", "TORCHELASTIC_", "PL_")
    return {name: value for name, value in os.environ.items() if name.startswith(names)}


@pytest.fixture(autouse=True)
def _clean_after_each_run() -> Iterator[None]:
    """Remove environment variables and process groups of a run before the next test."""
    before = _rank_variables()
    yield
    assert _rank_variables() == before
    assert not torch.distributed.is_initialized()


_create_interpolation_map = defaults_lists._create_interpolation_map


def _map_if_needed(overrides: Any, defaults: Any, self_added: bool) -> Any:
    if any(default.is_interpolation() for default in defaults):
        return _create_interpolation_map(overrides, defaults, self_added)
    return None


class _Loaded:
    """``OmegaConf.load`` with a cache by the text of an open file."""

    def __init__(self, load: Any) -> None:
        self.load = load
        self.known: dict[str, Any] = {}

    def __call__(self, file: Any) -> Any:
        if not hasattr(file, "read"):
            return self.load(file)
        text = file.read()
        if text not in self.known:
            self.known[text] = self.load(io.StringIO(text))
        return copy.deepcopy(self.known[text])
