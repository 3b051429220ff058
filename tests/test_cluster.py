"""What a choice of `cluster` lays down: manifests that a cluster takes, an image, a script."""

import fnmatch
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from baking import LIBRARY, TEMPLATE, bake, files_of, python_in
from manifests import mistakes

from onecurve.app.metric_names import better

STARTERS = json.loads((TEMPLATE / "cookiecutter.json").read_text(encoding="utf-8"))["starter"]
MANIFESTS = ("katib", "pytorchjob", "trainjob", "volume")
# Slips of a finger, of which the schemas of each operator and of Kubernetes must see each.
BROKEN = [
    ("pytorchjob", 'nprocPerNode: "1"', "nprocPerNode: 1"),
    ("pytorchjob", "volumeMounts", "volumeMount"),
    ("trainjob", "numNodes: 2", "numNodes: two"),
    ("trainjob", "claimName", "claim"),
    ("katib", "objectiveMetricName", "objectiveMetric"),
    ("volume", "mountPath", "mountpath"),
]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    answers = {"cluster": "kubernetes", "project_slug": "my_project"}
    return bake(tmp_path_factory.mktemp("kubernetes"), **answers)


Documents = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def documents(project: Path) -> Documents:
    return {
        name: list(yaml.safe_load_all((project / f"deploy/{name}.yaml").read_text("utf-8")))
        for name in MANIFESTS
    }


def test_manifests_are_as_their_operators_want_them(project: Path, documents: Documents) -> None:
    texts = {name: (project / f"deploy/{name}.yaml").read_text() for name in MANIFESTS}
    assert [found for text in texts.values() for found in mistakes(text)] == []
    for name, right, wrong in BROKEN:
        assert right in texts[name]
        assert mistakes(texts[name].replace(right, wrong, 1)), (name, wrong)
    # Names that they agree on, of a project whose name no cluster would take, for its underscore.
    text = "".join(texts.values())
    assert set(re.findall(r"claimName: ([\w-]+)", text)) == {"my-project"}
    assert set(re.findall(r"image: (\S+)", text)) == {"registry.example.com/my-project:1"}
    found = {each["metadata"]["name"] for parts in documents.values() for each in parts}
    assert found == {"my-project", "my-project-results", "my-project-1"}
    assert documents["volume"][0]["metadata"]["name"] == "my-project"


def test_pods_are_found_by_operators_and_type_what_the_project_knows(
    project: Path, documents: Documents
) -> None:
    (job,) = documents["pytorchjob"]
    for replicas in job["spec"]["pytorchReplicaSpecs"].values():
        (container,) = replicas["template"]["spec"]["containers"]
        assert container["name"] == "pytorch"
    runtime, train_job = documents["trainjob"]
    assert train_job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    (own,) = node["template"]["spec"]["template"]["spec"]["containers"]
    assert node["name"] == own["name"] == "node"
    for pod in (container, train_job["spec"]["trainer"]):
        python, *words = pod["command"] + pod["args"]
        assert python == "python"
        config = yaml.safe_load(python_in(project, *words, "--cfg", "job"))
        assert config["launch"]["max_restarts"] == 3


def test_a_trial_types_what_the_project_knows(project: Path, documents: Documents) -> None:
    (experiment,) = documents["katib"]
    template = experiment["spec"]["trialTemplate"]
    (trial,) = template["trialSpec"]["spec"]["template"]["spec"]["containers"]
    # As Katib's webhook makes of it: joined by blanks, for a shell.
    line = " ".join(trial["command"])
    for name, value in {"lr": "0.001", "model": "mlp", "trial": "my-project-x1"}.items():
        line = line.replace("${trialParameters." + name + "}", value)
    assert not set(line) & set("\"'`$()[]{}*?;&|<>")
    python, *words = line.split()
    assert python == "python"
    config = yaml.safe_load(python_in(project, *words, "--cfg", "job"))
    collector = experiment["spec"]["metricsCollectorSpec"]["source"]["fileSystemPath"]
    assert config["callbacks"]["katib"]["file"] == collector["path"]
    assert config["optimizer"]["lr"] == 0.001


@pytest.mark.parametrize("starter", STARTERS)
def test_each_starter_has_its_image_and_its_search(tmp_path: Path, starter: str) -> None:
    project = bake(tmp_path / "out", cluster="kubernetes", starter=starter, python="3.14")
    assert "/python:3.14-slim\n" in (project / "Dockerfile").read_text()
    katib = (project / "deploy/katib.yaml").read_text()
    spec = yaml.safe_load(katib)["spec"]
    models = spec["parameters"][1]["feasibleSpace"]["list"]
    assert models
    assert all((project / f"configs/model/{model}.yaml").is_file() for model in models)
    train = yaml.safe_load((project / "configs/train.yaml").read_text())
    monitor = train["monitor"]
    assert spec["objective"]["objectiveMetricName"] == monitor
    assert spec["objective"]["type"] == f"{better(monitor)}imize"
    assert mistakes(katib) == []


def test_the_image_does_not_carry_data_runs_and_secrets(project: Path) -> None:
    lines = (project / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]

    def is_carried(name: str) -> bool:
        path = Path(name)
        matched = [*path.parents, path, *(f"**/{part}" for part in path.parts)]
        return not any(fnmatch.fnmatchcase(f"{each}", p) for each in matched for p in patterns)

    left_out = [
        *("runs/a/metrics.csv", "data/digits.npz", ".venv/bin/python", ".git/HEAD", ".env"),
        *("outputs/a", "multirun/b", "wandb/c", "best.ckpt", "src/my_project/__pycache__/a.pyc"),
        *(".ruff_cache/d", ".mypy_cache/e", "src/.env", "configs/local/default.yaml"),
        *("src/my_project.egg-info/PKG-INFO", ".schemas/train.json", ".DS_Store"),
    ]
    assert [name for name in left_out if is_carried(name)] == []
    # What git ignores is not carried either.
    ignored = (project / ".gitignore").read_text().splitlines()
    named = [line.strip("/").replace("*", "x") for line in ignored if line and line[0] != "#"]
    assert [name for name in named if is_carried(name)] == []
    runs = re.compile(r"(src|configs|vendor)/|\w+\.py$|pyproject|README|LICENSE|constraints")
    # Tests before this one ran Python in it.
    baked = {name for name in files_of(project) if "__pycache__" not in name}
    assert [name for name in baked if runs.match(name) and not is_carried(name)] == []


def test_the_batch_script_is_one(tmp_path: Path) -> None:
    script = bake(tmp_path / "out", cluster="slurm") / "deploy/train.sbatch"
    text = script.read_text()
    # Slurm reads its lines up to the first command.
    head, _, body = text.partition("\nrun=")
    assert "#SBATCH --signal=USR2@120" in head
    assert "#SBATCH" not in body
    # That of the page is what `make test-slurm` queues.
    page = (LIBRARY / "docs/slurm.md").read_text()
    (shown,) = re.findall(r"```bash\n(#!/bin/bash\n.*?)```", page, re.DOTALL)
    assert text.replace("--job-name=my-project", "--job-name=train") == shown
    subprocess.run(["bash", "-n", script], check=True)
