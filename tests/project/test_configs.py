"""Every file of `configs/` is tried; new files are found automatically."""

from itertools import zip_longest
from pathlib import Path

import pytest
import small_data
import yaml
from conftest import CONFIGS, STARTER, TWO_STEPS
from jsonschema import Draft7Validator

from onecurve.app.command.schemas import ConfigFile, config_files, schemas
from onecurve.testing.runs import Cli

# Further overrides that a choice needs; all others are tried with the defaults.
NEEDS: dict[str, tuple[str, ...]] = getattr(small_data, "NEEDS", {})
if STARTER == "segmentation":  # a U-Net of small images, without a linear layer
    NEEDS = NEEDS | dict.fromkeys(("model/lenet", "strategy/tensor"), ("experiment=multi_label",))
FILES = sorted(path.relative_to(CONFIGS).with_suffix("") for path in CONFIGS.rglob("*.yaml"))
# For this machine only; git ignores them.
FILES = [file for file in FILES if file.parts[0] != "local"]
CHOICES = [file.as_posix() for file in FILES if len(file.parts) > 1]
SCHEMAS = schemas(CONFIGS)
# Groups in the defaults of train.yaml; others need a plus.
CHOSEN = {
    group.removeprefix("optional ")
    for entry in yaml.safe_load((CONFIGS / "train.yaml").read_text())["defaults"]
    if isinstance(entry, dict)
    for group in entry
}


# Of these groups one choice each is in the same run.
TOGETHER = ("callbacks", "init", "optimizer", "scheduler")
RUNS = [[file] for file in CHOICES if file.rpartition("/")[0] not in TOGETHER]
RUNS += [
    [file for file in row if file]
    for row in zip_longest(
        *([file for file in CHOICES if file.startswith(f"{group}/")] for group in TOGETHER)
    )
]


@pytest.mark.usefixtures("small_data")
@pytest.mark.parametrize("files", RUNS, ids=" ".join)
def test_every_choice_trains_two_steps(cli: Cli, files: list[str]) -> None:
    overrides: list[str] = []
    for file in files:
        group, _, choice = file.rpartition("/")
        overrides += [f"{'' if group in CHOSEN else '+'}{group}={choice}", *NEEDS.get(file, ())]
        # Not every optimizer has a kernel for shards.
        overrides += ["strategy=fsdp"] * (group == "optimizer")
    outcome = cli("train.py", *TWO_STEPS, *overrides)
    assert outcome.status == 0, outcome.err
    assert outcome.metrics["status"] == "finished"
    assert outcome.metrics["global_step"] == 2


@pytest.mark.parametrize("file", FILES, ids=str)
def test_every_file_says_what_it_does(file: Path) -> None:
    lines = (CONFIGS / f"{file}.yaml").read_text().splitlines()
    assert lines[lines[0].startswith("# @package")].startswith("# ")


def line_of(file: ConfigFile) -> str:
    """The line by which an editor finds the schema of a file."""
    up = "../" * (file.group.count("/") + 2 if file.group else 1)
    return f"# yaml-language-server: $schema={up}.schemas/{file.schema}.json"


@pytest.mark.parametrize("file", config_files(CONFIGS), ids=lambda file: file.path.stem)
def test_every_file_is_what_an_editor_is_told(file: ConfigFile) -> None:
    """`make schemas` would write the same schemas, and each file names its own."""
    errors = Draft7Validator(SCHEMAS[file.schema]).iter_errors(file.content)
    assert [f"{'.'.join(map(str, each.absolute_path))}: {each.message}" for each in errors] == []
    named = [line for line in file.path.read_text().splitlines() if "yaml-language-server:" in line]
    assert named == [line_of(file)]
