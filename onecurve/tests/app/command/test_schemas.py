"""JSON schemas of the configuration files: an editor reports what the command line reports."""

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from conftest import ROOT

from onecurve.app.command.schemas import (
    GROUPS,
    ConfigFile,
    main,
    of_project,
    schemas,
)

FILES = of_project(ROOT / "configs")
SCHEMAS = schemas(ROOT / "configs")


def faults(name: str, content: Any) -> list[str]:
    """What a schema says of a content, in a text for each mistake."""
    errors = jsonschema.Draft7Validator(SCHEMAS[name]).iter_errors(content)
    return ["\n".join(reasons(error)) for error in errors]


def reasons(error: jsonschema.ValidationError) -> list[str]:
    """A line for each alternative that it could have been."""
    own = ".".join(map(str, error.absolute_path)) + f": {error.message}"
    return [own, *(line for each in error.context or () for line in reasons(each))]


@pytest.mark.parametrize("file", FILES, ids=lambda file: "/".join(file.path.parts[-2:]))
def test_every_file_is_valid(file: ConfigFile) -> None:
    assert faults(file.schema, file.content) == []


def test_every_schema_is_valid_and_every_file_of_the_library_names_its_own() -> None:
    for schema in SCHEMAS.values():
        jsonschema.Draft7Validator.check_schema(schema)
    for file in of_project(GROUPS):
        up = "../" * (file.group.count("/") + 2 if file.group else 1)
        line = f"# yaml-language-server: $schema={up}.schemas/{file.schema}.json"
        assert line in file.path.read_text().splitlines()[1:3], file.path


RIGHT: dict[str, list[Any]] = {
    "trainer": [{"max_epochs": None, "devices": [0, 1], "max_time": {"hours": 1}}],
    "optimizer": [
        {"_target_": "a.b", "lr": "${model.width}", "weight_decay": "???", "betas": "${oc.env:X}"},
        {"_target_": "mine.Thing", "anything": [1]},
    ],
    "callbacks": [{"ema": None, "mine": {"_target_": "mine.Thing", "anything": 1}}],
    "_global_": [
        {"optimizer": {"lr": 0.1}, "width": 64, "model": {"hidden": "${width}"}},
        {"defaults": [{"override /callbacks": ["a"]}, "_self_"]},
        {"model": {"_target_": "mine.Net", "anything": 1}, "callbacks": {"ema": {"decay": 0.5}}},
    ],
}
WRONG: dict[str, list[tuple[Any, str]]] = {
    "trainer": [
        ({"max_epoch": 3}, "'max_epoch' was unexpected"),
    ],
    "optimizer": [
        ({"lr": "fast"}, "lr: 'fast'"),
        ({"_target_": "small.optimizers.adamw", "weight_decay": -1}, "weight_decay: -1"),
    ],
    "data": [({"_target_": "small.digits.Digits", "imagesize": 8}, "'imagesize' was unexpected")],
    "callbacks": [
        ({"mine": {"_target_": "onecurve.callbacks.throughput.Throughput", "n": 1}}, "'n' was un"),
    ],
    "_global_": [
        ({"trainr": {"max_epochs": 3}}, "trainr: {'max_epochs': 3} is not of type"),
        ({"callbacks": {"ema": {"decay": 2}}}, "decay: 2"),
        ({"defaults": "mlp"}, "defaults: 'mlp' is not of type 'array'"),
    ],
}


@pytest.mark.parametrize("name", {**RIGHT, **WRONG})
def test_an_editor_marks_what_is_wrong_alone(name: str) -> None:
    for content in RIGHT.get(name, []):
        assert faults(name, content) == [], content
    for content, words in WRONG[name]:
        (line,) = faults(name, content)
        assert words in line


def test_the_command_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "configs", "configs")
    Path(".schemas").mkdir()
    Path(".schemas/gone.json").write_text("{}")
    main()
    assert {path.stem for path in Path(".schemas").iterdir()} == set(SCHEMAS)
    assert json.loads(Path(".schemas/optimizer.json").read_text()) == SCHEMAS["optimizer"]
    Path("configs/train.yaml").write_text("a: [1")
    for line in ("train.yaml: is not valid YAML", "configs: there is no such folder"):
        with pytest.raises(SystemExit, match="2"):
            main()
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert line in err
        shutil.rmtree("configs", ignore_errors=True)
