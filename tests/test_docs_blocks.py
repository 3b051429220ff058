"""Every command and every piece of Python in the pages is run by a test, or named here."""

import re
from pathlib import Path

import pytest
from baking import LIBRARY, PARSERS, PROJECT, TEMPLATE, bake, python_in, scripts_in
from test_library_pages import PAGES

# How a command begins that is not run as it stands: it wants a cluster, a daemon, a bucket, a GPU.
NOT_HERE = (
    *("kubectl", "docker", "srun", "torchrun --nnodes 2", "make gpu", "tensorboard"),
    "python train.py callbacks.checkpoint.dirpath=s3://",
    *(f"python {script}=s3://" for script in ("train.py resume", "train.py init")),
    "python evaluate.py checkpoint=s3://",
)
# And what other tests run.
ELSEWHERE = (
    *("make setup", "source .venv/bin/activate", "make demo", "make docs", "make update"),
    *("uvx cookiecutter path/to/clone", "cd my-project", "pip install", "onecurve docs"),
    *("torchrun --nproc-per-node 2", "python -m torch.distributed.run", "python script.py"),
    "python train.py -m 'seed=range(4)' sweep/launcher=joblib",
    "python train.py -m 'seed=range(16)' sweep/launcher=slurm",
    "onecurve parity strategy=ddp",
)
BLOCK = re.compile(r"^```(\w+)\n(.*?)```", re.DOTALL | re.MULTILINE)
STARTS = re.compile(r"^    ((?:python|make|uv|pip|kubectl|docker|srun|torchrun) .*)", re.MULTILINE)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bake(tmp_path_factory.mktemp("blocks") / "out", cluster="kubernetes")


def pages(project: Path) -> list[Path]:
    """The project's, the template's and the library's, with what docs/library.md takes in."""
    folders = (project / "docs", TEMPLATE / "docs", LIBRARY / "docs")
    found = [page for folder in folders for page in folder.glob("*.md")]
    # One script, which tests/test_update.py runs.
    found = [page for page in found if page.stem != "moving"]
    return [*found, LIBRARY / "README.md", project / "README.md"]


def commands(text: str) -> list[str]:
    """The lines that one would type: of blocks, and those that stand by themselves."""
    shell = [block for language, block in BLOCK.findall(text) if language in {"bash", "sh"}]
    # A script is a file that a test runs as it stands: onecurve/tests/slurm/test_slurm.py.
    typed = [block for block in shell if not block.startswith("#!")]
    lines = [line for block in typed for line in block.splitlines()] + STARTS.findall(text)
    return [line for line in (re.split(r"  +#", line)[0].strip() for line in lines) if line]


def run_by_the_project(project: Path) -> list[str]:
    """Of its own pages, and of those that tests/test_library_pages.py lays beside them."""
    # What one of these words is in, tests/project/test_docs.py leaves out.
    source = (TEMPLATE / "tests/project/test_docs.py").read_text()
    words = re.findall(r'"(.*?)"', re.findall(r"^ELSEWHERE = \[(.*)\]$", source, re.M)[0])
    return [
        line
        for page in [*(project / "docs").glob("*.md"), *PAGES]
        for line in commands(page.read_text())
        if line.startswith(("python ", "onecurve ")) and not any(word in line for word in words)
    ]


def test_every_command_is_run_or_named(project: Path) -> None:
    known = [*NOT_HERE, *ELSEWHERE]
    run = set(run_by_the_project(project))
    run |= set(commands((TEMPLATE / "README.md").read_text()))
    found = [line for page in pages(project) for line in commands(page.read_text())]
    assert len(found) > 90
    assert [line for line in found if line not in run and not line.startswith(tuple(known))] == []
    unused = [name for name in known if not any(line.startswith(name) for line in found)]
    assert unused == []


# What zsh, the shell of every Mac, takes for the name of a file unless it is quoted or escaped.
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|\\\\.|\$\(\(?[^)]*\)?\)|\$\{[^}]*\}")
UNQUOTED = re.compile(r"[\[\]*?]|=\(|(^|\s)=\w")


def test_every_command_is_the_same_for_zsh(project: Path) -> None:
    others = [TEMPLATE / "README.md", TEMPLATE / "CONTRIBUTING.md"]
    others += (TEMPLATE / PROJECT / "starters").glob("*/README.md")
    lines = []
    for page in [*pages(project), *others]:
        text = page.read_text()
        lines += commands(text)
        spans = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
        lines += [span for span in spans if re.match(r"(python|make|pip|uvx?) ", span)]
        overrides = [span for span in spans if re.match(r"'?[+~]?[a-z][\w./]*=\S", span)]
        lines += [span for span in overrides if not re.search(r"\[['\"]|, ", span)]  # Python's
    lines = [line for line in dict.fromkeys(lines) if not line.startswith("#")]
    assert len(lines) > 200
    assert [line for line in lines if UNQUOTED.search(QUOTED.sub("", line))] == []


def test_every_piece_of_python_and_yaml_can_be_read(project: Path) -> None:
    """Those that are files are written and run by tests of the pages."""
    for page in pages(project):
        for language, block in BLOCK.findall(page.read_text()):
            if parser := PARSERS.get(f".{language.removesuffix('thon')}"):
                parser(block)


def pieces(page: Path) -> list[str]:
    return re.findall(r"```py\n(.*?)```", page.read_text(), re.DOTALL)


TRAIN = "debug=limit model=mlp trainer.max_epochs=1 test=false"


@pytest.mark.long
def test_an_exported_network_is_read_as_the_page_says(project: Path) -> None:
    export = "onecurve export checkpoint=runs/first/checkpoints/last.ckpt"
    scripts_in(
        project,
        f"train.py {TRAIN} hydra.run.dir=runs/first",
        f"{export} output=model.pt2",
        f"{export} format=onnx output=model.onnx",
    )
    of_torch, of_onnx = pieces(LIBRARY / "docs/using.md")
    check = "print(tuple(outputs.shape))"
    assert python_in(project, "-c", f"import torch\n{of_torch}\n{check}") == "(4, 10)\n"
    code = f"import onnxruntime\n{of_onnx}\nprint(shape)"
    assert python_in(project, "-c", code) == "['batch', 1, 32, 32]\n"


HEAD = """import torch, onecurve
from torch import nn
from lightning import LightningModule
{piece}
torch.manual_seed(0)
head, hidden, targets = Head(4, 3), torch.randn(5, 6, 4), torch.randint(3, (5, 6))
whole = nn.functional.cross_entropy(head(hidden).flatten(0, 1), targets.flatten())
assert torch.allclose(head((hidden, targets)).mean(), whole)
"""


@pytest.mark.slow
def test_pieces_of_pages_run(project: Path) -> None:
    """The library's train.py trains, and the head in pieces has the loss of the whole."""
    (train,), (head,) = pieces(LIBRARY / "README.md"), pieces(project / "docs/tasks.md")
    (project / "shown.py").write_text(train)
    (project / "head.py").write_text(HEAD.format(piece=head))
    scripts_in(project, "head.py", f"shown.py {TRAIN} hydra.run.dir=runs/second")
    assert (project / "runs/second/metrics.json").exists()
