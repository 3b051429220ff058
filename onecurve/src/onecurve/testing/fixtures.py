"""A plugin of pytest; in `conftest.py`: ``pytest_plugins = ["onecurve.testing.fixtures"]``."""

import copy
import io
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import chdir
from functools import cache
from pathlib import Path
from typing import Any

import omegaconf._utils
import omegaconf.base
import pytest
import torch
from hydra.core.object_type import ObjectType
from omegaconf import OmegaConf
from omegaconf.base import Metadata
from omegaconf.grammar_parser import parse

from ..compat.of_hydra import ConfigLoaderImpl
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
    with pytest.MonkeyPatch.context() as patch:
        _speed_up(patch)
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


# Faster composition
#
# Hydra and OmegaConf read every file, parse every interpolation and copy constant objects again
# each time, which is more than half of a short test in a process that composes hundreds of
# configurations. The results stay the same. Commands in other processes are not affected.


def _speed_up(patch: pytest.MonkeyPatch) -> None:
    """Install the patches, until `patch` is undone."""
    # Hydra copies its repository for each group that --help lists.
    patch.setattr(ConfigLoaderImpl, "get_group_options", _listed)
    patch.setattr(ConfigLoaderImpl, "list_groups", _groups)
    # Hydra prepares interpolations for the defaults of each file, but few have any.
    patch.setattr(defaults_lists, "_create_interpolation_map", _map_if_needed)
    # Parse trees are not changed by their readers.
    parsed_once = cache(parse)
    patch.setattr(omegaconf.base, "parse", parsed_once)
    patch.setattr(omegaconf._utils, "parse", parsed_once)
    patch.setattr(OmegaConf, "load", _Loaded(OmegaConf.load))
    patch.setattr(Metadata, "__deepcopy__", _copied, raising=False)


def _listed(loader: Any, group_name: str, results_filter: Any = ObjectType.CONFIG) -> list[str]:
    found: list[str] = loader.repository.get_group_options(group_name, results_filter)
    return found


def _groups(loader: Any, parent_name: str) -> list[str]:
    return _listed(loader, parent_name, ObjectType.GROUP)


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


def _copied(metadata: Metadata, memo: dict[int, Any]) -> Metadata:
    """Copy metadata; only two of its fields can change."""
    new = object.__new__(type(metadata))
    new.__dict__.update(metadata.__dict__)
    new.flags = None if metadata.flags is None else dict(metadata.flags)
    new.resolver_cache = defaultdict(dict)
    new.resolver_cache.update(copy.deepcopy(dict(metadata.resolver_cache), memo))
    return new
