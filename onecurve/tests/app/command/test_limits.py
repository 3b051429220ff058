"""Models of a project's own classes: arguments, bounds, and combinations that are rejected."""

import inspect
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from conftest import Refused
from hydra.utils import get_object
from lightning.pytorch import Callback
from pydantic import Field, create_model

import onecurve
from onecurve import Config, UserError
from onecurve.app.config import validate
from onecurve.app.config.validate import of_target
from onecurve.app.run.instantiate import validated
from onecurve.config_model import Words, existing, text

KEY = "callbacks.noise"


class Typed(Callback):
    """A callback whose types say what it takes."""

    def __init__(
        self,
        scale: Annotated[float, Field(gt=0, le=1)],
        noise: Literal["normal", "uniform"] = "normal",
        every: int | None = None,
    ) -> None: ...


class PassesOn(Typed):
    def __init__(self, until: int, **options: Any) -> None: ...


class Modelled(Callback):
    """A callback with a model."""

    class Config(onecurve.Config):
        scale: float = Field(gt=0, le=1)
        every: int | None = Field(None, ge=1)

    def __init__(self, scale: Any, every: Any = None) -> None: ...


class NotModelled(Modelled):
    def __init__(self, until: Any, **options: Any) -> None: ...


TYPED: dict[str, tuple[type, dict[str, Any]]] = {
    ".scale=2: must be a number above 0 to 1, such as {}.scale=1": (Typed, {"scale": 2}),
    ".noise=norml: must be one of normal, uniform, such as {}.noise=normal": (
        *(Typed, {"scale": 1, "noise": "norml"}),
    ),
    ".scal: there is no such key; did you mean {}.scale?": (Typed, {"scale": 1, "scal": 1}),
    ".scale is needed: add {}.scale=...": (Typed, {"noise": "normal"}),
    ".scale=3: must be a number above 0 to 1, such as {}.scale=1": (
        *(PassesOn, {"until": 1, "scale": 3}),
    ),
    ".scale is needed: add {}.scale=... ": (Modelled, {}),
    ".scal: there is no such key; did you mean {}.scale? ": (Modelled, {"scale": 1, "scal": 1}),
}


def node(part: type, **options: Any) -> dict[str, Any]:
    return {"_target_": f"test_limits.{part.__name__}", **options}


@pytest.mark.parametrize("line", TYPED)
def test_a_class_says_what_it_takes_by_its_types_or_a_model(line: str) -> None:
    part, options = TYPED[line]
    with pytest.raises(UserError) as caught:
        validated(KEY, node(part, **options))
    assert str(caught.value) == KEY + line.format(KEY).strip()


def test_a_constructor_validates_what_it_is_built_with(refused: Refused, tmp_path: Path) -> None:
    for part in (Typed, Modelled):
        given = validated(KEY, node(part, _partial_=True, every=1e3))
        assert given["every"] == 1000
        inner = {"_target_": "builtins.dict", "a": node(part, scale=0)}
        with pytest.raises(UserError, match=f"^{KEY}.a.scale=0: "):
            validated(KEY, inner)
    assert validated(KEY, node(PassesOn, until=1e3, scale=1))["until"] == 1000
    # A subclass with other arguments does not inherit a model.
    other = node(NotModelled, until=3, scale=7)
    assert validated(KEY, other) == other
    # A command's line leaves nothing.
    line = refused("train.py", f"+{KEY}._target_=test_limits.Typed", f"+{KEY}.scale=2")
    assert line.startswith(f"error: {KEY}.scale=2: must be a number above 0 to 1")
    assert list(tmp_path.iterdir()) == []


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


def test_a_validator_gives_the_reason(tmp_path: Path) -> None:
    annotation = Annotated[Any, existing("a file, such as x")]
    assert refusal(annotation, str(tmp_path)) is None
    line = refusal(annotation, "nowhere")
    assert line == "key=nowhere: there is no such file; give a file, such as x"


@pytest.mark.parametrize(
    ("annotation", "value", "meant"),
    [(str | None, 88, "88"), (int, 1e3, 1000), (float, 300, 300), (list[str], [0], ["0"])],
)
def test_a_number_is_converted_to_what_is_allowed(annotation: Any, value: Any, meant: Any) -> None:
    changed = model_with(annotation).checked({"key": value}).changed
    assert repr(changed.get("key", value)) == repr(meant)
