"""A plugin of pytest; in `conftest.py`: ``pytest_plugins = ["onecurve.testing.fixtures"]``."""

from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path

import pytest

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
        created = [path for path in run_directories(folder) if path not in before]
        return Outcome(status, out, err, created)

    return run


@pytest.fixture(scope="module")
def once(scripts: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Training runs that several tests of a file share: ``once("strategy=ddp")``.

    Each is run when it is first requested, and must succeed. Returns its directory.
    """
    folder = tmp_path_factory.mktemp("once")
    finished: dict[tuple[str, ...], Path] = {}

    def run(*arguments: str) -> Path:
        if arguments not in finished:
            with chdir(folder):
                status = run_script(scripts / "train.py", *arguments)
            assert status == 0, f"train.py {' '.join(arguments)}"
            finished[arguments] = run_directories(folder)[-1]
        return finished[arguments]

    return run
