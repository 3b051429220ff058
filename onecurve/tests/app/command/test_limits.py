"""Models of classes: arguments, bounds, and combinations that are rejected."""

import inspect
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
import pytest
import yaml
from conftest import ROOT, Refused
from hydra.utils import get_object
from lightning.pytorch import Callback
from pydantic import Field, create_model

import onecurve
from onecurve import Config, UserError
from onecurve.app.command.schemas import of_model
from onecurve.app.config import validate
from onecurve.app.config.validate import of_target
from onecurve.app.run.instantiate import validated
from onecurve.config_model import Words, existing, fields, text

KEY = "callbacks.noise"


class Typed(Callback):
    """A callback whose types say what it takes."""

    def __init__(
        self,
        scale: Annotated[float, Field(gt=0, le=1)],
        noise: Literal["normal", "uniform"] = "normal",
        every: int | None = None,
        file: Annotated[Any, existing("a file, such as x")] = None,
    ) -> None: ...


class PassesOn(Typed):
    def __init__(self, until: int, **options: Any) -> None: ...


class Modelled(Callback):
    """A callback with a model."""

    class Config(onecurve.Config):
        scale: float = Field(gt=0, le=1)
        every: int | None = Field(None, ge=1)

    def __init__(self, scale: Any, every: Any = None) -> None: ...


TYPED: list[tuple[type, dict[str, Any], str]] = [
    (Typed, {"scale": 2}, f"scale=2: must be a number above 0 to 1, such as {KEY}.scale=1"),
    (Typed, {"scale": 1, "noise": "norml"}, "noise=norml: must be one of normal, uniform, such as"),
    (Typed, {"scale": 1, "scal": 1}, f"scal: there is no such key; did you mean {KEY}.scale?"),
    (Typed, {"scale": 1, "file": "nowhere"}, "file=nowhere: there is no such file; give a fi"),
    (PassesOn, {"until": 1, "scale": 3}, "scale=3: must be a number above 0 to 1"),
    (Modelled, {}, f"scale is needed: add {KEY}.scale=..."),
]


def node(part: type, **options: Any) -> dict[str, Any]:
    return {"_target_": f"test_limits.{part.__name__}", **options}


@pytest.mark.parametrize(("part", "options", "line"), TYPED)
def test_a_class_says_what_it_takes_by_its_types_or_a_model(
    part: type, options: dict[str, Any], line: str
) -> None:
    with pytest.raises(UserError) as caught:
        validated(KEY, node(part, **options))
    assert str(caught.value).startswith(f"{KEY}.{line}")


def test_a_constructor_validates_what_it_is_built_with(refused: Refused, tmp_path: Path) -> None:
    for part in (Typed, Modelled):
        given = validated(KEY, node(part, _partial_=True, every=1e3))
        assert given["every"] == 1000
        inner = {"_target_": "builtins.dict", "a": node(part, scale=0)}
        with pytest.raises(UserError, match=f"^{KEY}.a.scale=0: "):
            validated(KEY, inner)
    assert validated(KEY, node(PassesOn, until=1e3, scale=1))["until"] == 1000
    # A command's line leaves nothing.
    line = refused("train.py", f"+{KEY}._target_=test_limits.Typed", f"+{KEY}.scale=2")
    assert line.startswith(f"error: {KEY}.scale=2: must be a number above 0 to 1")
    assert list(tmp_path.iterdir()) == []


def test_every_key_of_the_library_is_taken_by_its_class() -> None:
    for target in validate.TARGETS:
        model = of_target(target)
        assert model is not None
        names = {field.alias or key for key, field in model.model_fields.items()}
        taken = inspect.signature(get_object(target)).parameters
        if all(each.kind != inspect.Parameter.VAR_KEYWORD for each in taken.values()):
            assert names - {"name", "processes"} <= set(taken), target


STRATEGIES = ROOT.parents[2] / "{{cookiecutter.project_slug}}/configs/strategy"


@pytest.mark.parametrize("file", [*STRATEGIES.glob("*.yaml")], ids=lambda file: file.stem)
def test_a_strategy_s_file_shows_all_arguments_of_its_class_with_their_defaults(
    file: Path,
) -> None:
    content = yaml.safe_load(file.read_text())
    model = of_target(content.pop("_target_"))
    assert model is not None
    defaults = {key: field.get_default() for key, field in fields(model).items()}
    assert content.keys() == defaults.keys()
    for key, value in content.items():
        assert key in ("name", "processes") or f"{value}".startswith("${") or value == defaults[key]


def test_a_script_gets_the_line_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing and unknown arguments are those of Python."""
    monkeypatch.delenv("ONECURVE_PROJECT", raising=False)
    with pytest.raises(UserError, match=r"^wrap=3: must be layer or .*, such as wrap='layer'$"):
        onecurve.FSDP(wrap=3)  # type: ignore[arg-type]
    line = r"^StochasticWeightAveraging\(lr=-1\): must be a number above 0 or null, such as Stoch"
    with pytest.raises(UserError, match=line):
        onecurve.StochasticWeightAveraging("x", lr=-1)
    with pytest.raises(TypeError, match="FSDP: got an unexpected keyword argument 'rap'"):
        onecurve.FSDP(rap="layer")  # type: ignore[call-arg]


WHOLE = Annotated[int, Field(ge=1)]
DIGITS = Annotated[str, Field(pattern=r"^\d+$"), Words("digits", "12")]
NO_WHOLE = [0, 1.5, True, "1", None, float("inf")]
VALUES: list[tuple[Any, list[Any], list[Any], str]] = [
    (WHOLE, [1, 7, 2.0], NO_WHOLE, "a whole number from 1, such as key=1"),
    (WHOLE | Literal["auto"], ["auto", 3], ["aut", 0], "a whole number from 1 or auto"),
    (Annotated[float, Field(gt=0)], [1], [0, "x"], "a number above 0, such as key=1"),
    (Annotated[float, Field(gt=0, lt=1)], [0.5], [0, 1, float("nan")], "below 1, such as key=0.5"),
    (Annotated[float, Field(gt=0, le=0.3)], [0.15], [0.4], "above 0 to 0.3, such as key=0.15"),
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
    """On the command line, and in an editor by the schema."""
    is_valid = jsonschema.Draft7Validator(of_model(model_with(annotation))).is_valid
    for value in [*good, "${seed}"]:
        assert value == "${seed}" or refusal(annotation, value) is None, value
        assert is_valid({"key": value}), value
    for value in bad:
        line = str(refusal(annotation, value))
        # With the quotes that make it a text.
        shown = '"1"' if value == "1" else text(value)
        assert line.startswith(f"key={shown}: must be ")
        assert words in line
        # JSON has one kind of number, no infinite one, and true is another than 1.
        if value == value and value not in (1, float("inf")):
            assert not is_valid({"key": value}), value


@pytest.mark.parametrize(
    ("annotation", "value", "meant"),
    [(str | None, 88, "88"), (int, 1e3, 1000), (float, 300, 300), (list[str], [0], ["0"])],
)
def test_a_number_is_converted_to_what_is_allowed(annotation: Any, value: Any, meant: Any) -> None:
    changed = model_with(annotation).checked({"key": value}).changed
    assert repr(changed.get("key", value)) == repr(meant)
