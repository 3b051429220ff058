"""Limits and refusals of one's own: no line of the library knows of them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from conftest import ROOT

from onecurve.command import allowed
from onecurve.command.signatures import arguments, keywords, sources
from onecurve.limits import Existing, Number, Pattern

CALLBACK = """
from typing import Annotated, Literal

from lightning.pytorch import Callback

from onecurve.limits import Number

Often = Annotated[int, Number(least=1)]


class Base(Callback):
    def __init__(self, scale: Annotated[float, Number(above=0, most=1)], **options: int) -> None:
        self.scale = scale


class GradientNoise(Base):
    def __init__(
        self,
        noise: Literal["normal", "uniform"] = "normal",
        every: Often | None = None,
        module: "torch.nn.Module | None" = None,
        **options: float,
    ) -> None:
        super().__init__(**options)
"""
REFUSALS = """
from collections.abc import Iterator

from onecurve.composed_run import ComposedRun


def refusals(run: ComposedRun, key: str) -> Iterator[str]:
    if not run.one_process:
        yield f"strategy={run.strategy}: the copies drift apart; use strategy=single, or ~{key}"
"""
CONFIG = """
noise:
  _target_: own.noise.GradientNoise
  scale: 0.01
  noise: normal
  every: null
"""
KEY = "callbacks.noise"
TYPED = {
    f"{KEY}.scale=2": f"{KEY}.scale=2: must be a number above 0 to 1, such as {KEY}.scale=0.01",
    f"{KEY}.every=1.5": f"{KEY}.every=1.5: must be a whole number from 1 or null, such as "
    f"{KEY}.every=null",
    f"{KEY}.noise=unifrm": f"{KEY}.noise=unifrm: must be one of normal, uniform, such as "
    f"{KEY}.noise=uniform",
    "strategy=ddp": f"strategy=ddp: the copies drift apart; use strategy=single, or ~{KEY}",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a callback of its own, in three files."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copytree(ROOT, folder, dirs_exist_ok=True)
    (folder / "configs/callbacks/noise.yaml").write_text(CONFIG)
    (folder / "own").mkdir()
    # What the package imports is not imported to read a limit, or a refusal.
    (folder / "own/__init__.py").write_text("import torch\n")
    (folder / "own/noise.py").write_text(CALLBACK)
    (folder / "own/noise_refusals.py").write_text(REFUSALS)
    return folder


@pytest.mark.parametrize("typed", TYPED)
def test_limits_of_ones_own_are_kept_without_torch(
    project: Path, tmp_path: Path, typed: str
) -> None:
    paths = os.pathsep.join([str(project), os.environ.get("PYTHONPATH", "")])
    overrides = ["+callbacks=noise", typed, f"paths.root={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "train.py", *overrides],
        cwd=project,
        env={**os.environ, "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    shown = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert shown == [f"error: {TYPED[typed]}"]
    assert done.returncode == 2
    imported = {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if "|" in line}
    assert "onecurve.command.check" in imported
    assert imported.isdisjoint({"torch", "lightning", "own", "own.noise"})
    assert list(tmp_path.iterdir()) == []


def test_arguments_are_read_along_the_bases() -> None:
    found = arguments("small.digits.Digits")
    assert found["batch_size"] == Annotated[int, Number(least=1)]
    # Its own are plain numbers, and what names torch's types is passed over.
    assert found["val_size"] is int
    assert "augment" not in found
    files = [source.file.name for source in sources("small.digits.Digits")]
    assert files == ["digits.py", "images.py"]


def test_arguments_of_a_function_that_passes_options_on() -> None:
    found = arguments("small.optimizers.sgd")
    assert found["lr"] == Annotated[float, Number(above=0)]
    assert found["momentum"] == Annotated[float, Number(least=0, most=1)]


def test_small_parts_of_torch_are_read() -> None:
    assert arguments("torch.nn.init.kaiming_normal_")["a"] is float
    assert keywords("torch.optim.SGD")[:3] == ["params", "lr", "momentum"]
    assert arguments("torch.optim.SGD")["nesterov"] is bool


@pytest.mark.parametrize("target", ["torch.nn.Linear", "nowhere.Thing", "small.Nothing"])
def test_what_cannot_be_read_has_no_limits(target: str) -> None:
    assert arguments(target) == {}
    assert sources(target) == ()


WHOLE = Annotated[int, Number(least=1)]
VALUES: list[tuple[Any, list[Any], list[Any], str]] = [
    (WHOLE, [1, 7, 2.0], [0, 1.5, True, "1", None, float("inf")], "a whole number from 1, such as"),
    (WHOLE | None, [None], [0], "a whole number from 1 or null"),
    (WHOLE | Literal["auto"], ["auto", 3], ["aut", 0], "a whole number from 1 or auto"),
    (
        Annotated[float, Number(above=0, below=1)],
        [0.5],
        [0, 1, float("nan")],
        "above 0 and below 1",
    ),
    (Literal["a", "b"] | None, ["a", None], ["c", 1, True], "one of a, b, null"),
    (
        list[WHOLE] | None,
        [[], [1, 2], None],
        [3, [0], ["a"]],
        "a list, each entry a whole number from",
    ),
    (Literal[1], [1], [True, 1.0], "one of 1"),
    (Annotated[str, Pattern(r"\d+", "digits", "12")], ["3"], ["x3", 3], "digits, such as key=12"),
]


@pytest.mark.parametrize(("annotation", "good", "bad", "words"), VALUES, ids=lambda value: "")
def test_values_and_words(annotation: Any, good: list[Any], bad: list[Any], words: str) -> None:
    assert allowed.is_limit(annotation)
    for value in good:
        assert allowed.refusal(annotation, "key", value, None) is None, value
    for value in bad:
        line = allowed.refusal(annotation, "key", value, None)
        assert line is not None, value
        assert line.startswith(f"key={allowed.text(value)}: must be ")
        assert words in line


@pytest.mark.parametrize(
    ("limit", "kind", "example"),
    [
        (Number(least=1), int, "1"),
        (Number(above=0), float, "1"),
        (Number(above=0, below=1), float, "0.5"),
        (Number(above=0, most=0.3), float, "0.15"),
        (Number(most=-2), int, "-2"),
        (Number(below=0), int, "-1"),
    ],
)
def test_an_example_is_derived_and_allowed(limit: Number, kind: Any, example: str) -> None:
    annotation = Annotated[kind, limit]
    line = allowed.refusal(annotation, "key", "x", usual=None)
    assert line is not None
    assert line.endswith(f"such as key={example}")
    assert allowed.refusal(annotation, "key", kind(float(example)), None) is None


def test_a_path_that_must_be_there(tmp_path: Path) -> None:
    annotation = Annotated[str, Existing("a file, such as x")] | None
    assert allowed.refusal(annotation, "key", str(tmp_path), None) is None
    assert allowed.refusal(annotation, "key", None, None) is None
    line = allowed.refusal(annotation, "key", "nowhere", None)
    assert line == "key=nowhere: there is no such file; give a file, such as x"


def test_what_is_typed_as_a_number_is_a_text_where_only_a_text_may_stand() -> None:
    assert allowed.as_meant(str | None, 88) == "88"
    assert allowed.as_meant(int | str, 5) == 5
    assert allowed.as_meant(int, 1e3) == 1000
