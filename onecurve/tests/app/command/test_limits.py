"""Models of a project's own classes: arguments, bounds, and combinations that are rejected."""

import inspect
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from conftest import Refused
from hydra.utils import get_object
from pydantic import Field, create_model

from onecurve import Config, UserError
from onecurve.app.config import validate
from onecurve.app.config.validate import of_target
from onecurve.app.run.instantiate import validated
from onecurve.config_model import Words, existing, text

CALLBACK = """
import onecurve
from lightning.pytorch import Callback
from pydantic import Field

class GradientNoise(Callback):
    class Config(onecurve.Config):
        scale: float = Field(gt=0, le=1)
        every: int | None = Field(None, ge=1)

    def __init__(self, scale, every=None, noise="normal"):
        self.scale = scale

class Annealed(GradientNoise):
    def __init__(self, until, **options):
        super().__init__(**options)
"""
TYPED_CALLBACK = """
import torch
from lightning.pytorch import Callback

from .types import Noise, Scale

class GradientNoise(Callback):
    def __init__(self, scale: Scale, noise: Noise = "normal", every: int | None = None):
        self.scale = scale

class Annealed(GradientNoise):
    def __init__(self, until: int, **options):
        super().__init__(noise="uniform", **options)
"""
TYPES = """
from typing import Annotated, Literal

from pydantic import Field

Scale = Annotated[float, Field(gt=0, le=1)]
Noise = Literal["normal", "uniform"]
"""
KEY, OF_BASE = "callbacks.noise", {"_target_": "own.noise.Annealed"}
TYPED: dict[str, dict[str, Any]] = {
    f"{KEY}.scale=2: must be a number above 0 to 1, such as {KEY}.scale=1": {"scale": 2},
    f"{KEY}.noise=norml: must be one of normal, uniform, such as {KEY}.noise=normal": (
        {"scale": 1, "noise": "norml"}
    ),
    f"{KEY}.every=often: must be a whole number or null, such as {KEY}.every=null": (
        {"scale": 1, "every": "often"}
    ),
    f"{KEY}.scal: there is no such key; did you mean {KEY}.scale?": {"scale": 1, "scal": 1},
    f"{KEY}.scale is needed: add {KEY}.scale=...": {"noise": "normal"},
    # What a class passes on to its base.
    f"{KEY}.until=x: must be a whole number, such as {KEY}.until=0": {**OF_BASE, "until": "x"},
    f"{KEY}.scale=3: must be a number above 0 to 1, such as {KEY}.scale=1": (
        {**OF_BASE, "until": 1, "scale": 3}
    ),
}


@pytest.fixture(autouse=True)
def _own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with callbacks: one whose types are in another file, and one with a model."""
    folder = tmp_path / "code/own"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "noise.py").write_text(TYPED_CALLBACK)
    (folder / "types.py").write_text(TYPES)
    (folder / "modelled.py").write_text(CALLBACK)
    monkeypatch.syspath_prepend(str(folder.parent))


def test_a_constructor_validates_what_it_is_built_with(refused: Refused, tmp_path: Path) -> None:
    for line, options in TYPED.items():
        with pytest.raises(UserError) as caught:
            validated(KEY, {"_target_": "own.noise.GradientNoise", **options})
        assert str(caught.value) == line
    given = validated(KEY, {"_target_": "own.noise.GradientNoise", "every": 1e3}, ("scale",))
    assert given["every"] == 1000
    node = {"_target_": "own.noise.Annealed", "until": 1e3, "scale": 1}
    assert validated(KEY, node) == {**node, "until": 1000}
    # A command's line leaves nothing.
    typed = (f"+{KEY}._target_=own.noise.GradientNoise", f"+{KEY}.scale=2")
    assert refused("train.py", *typed) == f"error: {next(iter(TYPED))}"
    assert {path.name for path in tmp_path.iterdir()} == {"code"}


def test_a_model_in_a_class_reports_missing_and_unknown_keys() -> None:
    noise = "own.modelled.GradientNoise"

    def refused(**options: Any) -> str:
        with pytest.raises(UserError) as caught:
            validated("callbacks.noise", {"_target_": noise, **options})
        return str(caught.value)

    assert refused() == "callbacks.noise.scale is needed: add callbacks.noise.scale=..."
    hint = "callbacks.noise.scal: there is no such key; did you mean callbacks.noise.scale?"
    assert refused(scale=1, scal=1) == hint
    assert refused(_target_=f"{noise}s") == (
        "callbacks.noise._target_=own.modelled.GradientNoises: there is no GradientNoises in "
        "own.modelled; did you mean own.modelled.GradientNoise?"
    )
    assert validated("x", {"_target_": noise, "scale": 1, "every": 1e3})["every"] == 1000
    # The rest is given when it is called.
    assert validated("x", {"_target_": noise, "_partial_": True, "every": 2})["every"] == 2
    nested = {"inner": {"_target_": noise, "scale": 0}}
    assert refused(**{"_target_": "builtins.dict", **nested}).startswith("callbacks.noise.inner.sc")
    # A subclass with other arguments does not inherit it.
    node = {"_target_": "own.modelled.Annealed", "until": 3, "scale": 7}
    assert validated("callbacks.noise", node) == node


OPTIONS = [
    f"{room}.options.{name}"
    for room in validate.ROOMS
    for name in vars(import_module(f"onecurve.{room}.options"))
    if name.endswith("Options")
]


def test_every_key_of_the_library_is_described_and_taken_by_its_class() -> None:
    for name in {*validate.TARGETS.values(), *validate.GROUPS.values(), *OPTIONS}:
        model = validate._model(name)
        assert model.__doc__, name
        fields = model.model_fields.items()
        assert [key for key, field in fields if not field.description] == [], name
    for target in validate.TARGETS:
        model = of_target(target)
        assert model is not None
        names = {field.alias or key for key, field in model.model_fields.items()}
        taken = inspect.signature(get_object(target)).parameters
        if all(each.kind != inspect.Parameter.VAR_KEYWORD for each in taken.values()):
            assert names - {"name", "processes"} <= set(taken), target


WHOLE = Annotated[int, Field(ge=1)]
DIGITS = Annotated[str, Field(pattern=r"^\d+$"), Words("digits", "12")]
NO_WHOLE = [0, 1.5, True, "1", None, float("inf")]
VALUES: list[tuple[Any, list[Any], list[Any], str]] = [
    (WHOLE, [1, 7, 2.0], NO_WHOLE, "a whole number from 1, such as key=1"),
    (WHOLE | None, [None], [0], "a whole number from 1 or null"),
    (WHOLE | Literal["auto"], ["auto", 3], ["aut", 0], "a whole number from 1 or auto"),
    (Annotated[float, Field(gt=0)], [1], [0, "x"], "a number above 0, such as key=1"),
    (Annotated[float, Field(gt=0, lt=1)], [0.5], [0, 1, float("nan")], "below 1, such as key=0.5"),
    (Annotated[float, Field(gt=0, le=0.3)], [0.15], [0.4], "above 0 to 0.3, such as key=0.15"),
    (Annotated[int, Field(le=-2)], [-2], [-1], "a whole number to -2, such as key=-2"),
    (Annotated[int, Field(lt=0)], [-1], [0], "a whole number below 0, such as key=-1"),
    (Literal["a", "b"] | None, ["a", None], ["c", 1, True], "one of a, b, null"),
    (list[WHOLE] | None, [[], [1, 2], None], [3, [0], ["a"]], "a list, each entry a whole number"),
    (DIGITS, ["3"], ["x3"], "digits, such as key=12"),
    (bool, [True, False], [1, "true", None], "true or false"),
]


def model_with(annotation: Any, default: Any = ...) -> type[Config]:
    """A model with one key."""
    return create_model("One", __base__=Config, key=(annotation, default))


def refusal(annotation: Any, value: Any, usual: Any = None) -> str | None:
    problems = model_with(annotation).checked({"key": value}).problems
    return problems[0].line("", usual) if problems else None


@pytest.mark.parametrize(("annotation", "good", "bad", "words"), VALUES, ids=lambda value: "")
def test_values_and_words(annotation: Any, good: list[Any], bad: list[Any], words: str) -> None:
    for value in good:
        assert refusal(annotation, value) is None, value
    for value in bad:
        line = refusal(annotation, value)
        assert line is not None, value
        # With the quotes that make it a text.
        shown = '"1"' if value == "1" else text(value)
        assert line.startswith(f"key={shown}: must be ")
        assert words in line


def test_the_example_in_an_error_is_the_default_if_that_is_allowed() -> None:
    assert str(refusal(WHOLE, 0, usual=32)).endswith("such as key=32")
    assert str(refusal(WHOLE, 0, usual=-1)).endswith("such as key=1")
    (problem,) = model_with(WHOLE, 5).checked({"key": 0}).problems
    line = "group.key=0: must be a whole number from 1, such as group.key=5"
    assert problem.line("group") == line


def test_a_validator_gives_the_reason(tmp_path: Path) -> None:
    annotation = Annotated[Any, existing("a file, such as x")]
    assert refusal(annotation, str(tmp_path)) is None
    assert refusal(annotation, None) is None
    line = refusal(annotation, "nowhere")
    assert line == "key=nowhere: there is no such file; give a file, such as x"


def test_a_number_is_converted_where_only_text_is_allowed() -> None:
    def meant(annotation: Any, value: Any) -> Any:
        found = model_with(annotation).checked({"key": value})
        assert not found.problems
        return found.changed.get("key", value)

    assert meant(str | None, 88) == "88"
    assert meant(int | str, 5) == 5
    assert repr(meant(int, 1e3)) == "1000"
    assert repr(meant(float, 300)) == "300"
    assert meant(list[str], [0, 1]) == ["0", "1"]
