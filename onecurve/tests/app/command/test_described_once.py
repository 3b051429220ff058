"""Arguments are described once, by models: YAML files and a script's arguments agree with them."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, ModelSummary

import onecurve
from onecurve import UserError
from onecurve.app.command.schemas import GROUPS
from onecurve.app.config.validate import of_target
from onecurve.callbacks.katib import KatibMetrics
from onecurve.callbacks.lr_finder import LearningRateRangeTest
from onecurve.config_model import Config, alternatives, annotation_of, choices, fields

TEMPLATE = ROOT.parents[2] / "{{cookiecutter.project_slug}}/configs"
FILES = [
    file
    for folder in (ROOT / "configs", GROUPS, TEMPLATE)
    for group in ("strategy", "callbacks")
    for file in sorted((folder / group).glob("*.yaml"))
]
ABOUT = {"name", "processes"}
# What a project's files give, while a script gets the default of the constructor.
GIVEN: dict[str, dict[str, Any]] = {
    "batch_size_finder": {"init_val": 32},
    "checkpoint": {
        "filename": "best",
        "save_last": True,
        "every_n_epochs": 1,
        "auto_insert_metric_name": False,
        "enable_version_counter": False,
    },
    "device_stats": {"cpu_stats": False},
    "early_stopping": {"patience": 5},
    "lr_monitor": {"logging_interval": "epoch"},
    "model_summary": {"max_depth": 2},
}


def described(target: str) -> type[Config]:
    model = of_target(target)
    assert model is not None, target
    return model


def entries(file: Path) -> dict[str, dict[str, Any]]:
    """The objects in a file of `strategy` or `callbacks` by name, and their arguments."""
    content = yaml.safe_load(re.sub(r"{{.*?}}", "project", file.read_text())) or {}
    content.pop("defaults", None)
    return {file.stem: content} if file.parent.name == "strategy" else content


@pytest.mark.parametrize("file", FILES, ids=lambda file: "/".join(file.parts[-4:]))
def test_a_file_has_the_keys_and_defaults_of_its_model(file: Path) -> None:
    for name, content in entries(file).items():
        target = content.pop("_target_")
        if of_target(target) is None:
            continue
        known = fields(described(target))
        assert set(content) <= set(known)
        if file.parent.name == "strategy":
            assert set(content) == set(known), "a strategy shows all of its arguments"
        for key, value in content.items():
            is_shown = target.endswith("Displays")  # off in a constructor, on in a file
            if key in ABOUT or is_shown or str(value).startswith("${") or known[key].is_required():
                continue
            assert value == GIVEN.get(name, {}).get(key, known[key].get_default()), key


@pytest.mark.parametrize(
    "file", [file for file in FILES if file.parent.name == "strategy"], ids=lambda file: file.stem
)
def test_a_comment_names_every_choice(file: Path) -> None:
    """Where there is one that does not refer to another file."""
    written = dict(re.findall(r"(?m)^(\w+): .*?  # (.*)$", file.read_text()))
    compared = 0
    for key, field in fields(described(entries(file)[file.stem]["_target_"])).items():
        parts = alternatives(annotation_of(field))
        words = {value for part in parts for value in choices(part) if isinstance(value, str)}
        if key in written and " as for " not in f" {written[key]}":
            assert words - {str(field.get_default())} <= set(re.findall(r"\w+", written[key])), key
            compared += bool(words)
    assert compared


PASSED_ON = {
    "callbacks.early_stopping.EarlyStopping": EarlyStopping,
    "callbacks.model_summary.LayerTable": ModelSummary,
    "checkpoint.callback.BestAndLast": ModelCheckpoint,
}


@pytest.mark.parametrize("name", PASSED_ON)
def test_what_is_passed_on_has_the_defaults_of_lightning(name: str) -> None:
    taken = inspect.signature(PASSED_ON[name]).parameters
    ours = {"last_every_n_steps", "last_every_minutes", "monitor"}
    known = fields(described(f"onecurve.{name}"))
    keys = {key: field.get_default() for key, field in known.items() if key not in ours}
    assert keys == {key: taken[key].default for key in keys}


REJECTED: dict[str, Callable[[], Any]] = {
    "wrap=3: must be layer or a list, each entry text, such as wrap='layer'": (
        lambda: onecurve.FSDP(wrap=3)  # type: ignore[arg-type]
    ),
    "tensor=0: must be a whole number from 1, such as tensor=1": lambda: onecurve.mesh(tensor=0),
    "StochasticWeightAveraging(lr=-1): must be a number above 0 or null, such as "
    "StochasticWeightAveraging(lr=None)": lambda: onecurve.StochasticWeightAveraging("x", lr=-1),
}


def test_a_script_gets_the_line_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing and unknown arguments are those of Python."""
    monkeypatch.delenv("ONECURVE_PROJECT", raising=False)
    for line, made in REJECTED.items():
        with pytest.raises(UserError) as caught:
            made()
        assert str(caught.value) == line
    with pytest.raises(TypeError, match="FSDP: got an unexpected keyword argument 'rap'"):
        onecurve.FSDP(rap="layer")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="KatibMetrics: missing a required argument: 'file'"):
        KatibMetrics()  # type: ignore[call-arg]


def test_values_may_be_of_other_kinds_that_mean_the_same(tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    finder = LearningRateRangeTest(tmp_path / "lr.png", np.float32(1e-5), 1, steps=np.int64(30))
    assert (finder.file, finder._num_training_steps) == (str(tmp_path / "lr.png"), 30)
    assert onecurve.FSDP(wrap=("Linear",)).parallelisms[0].options.wrap == ["Linear"]
