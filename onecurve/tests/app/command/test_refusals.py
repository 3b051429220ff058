"""Mistakes on the command line get one clear line, whose advice helps, and leave nothing behind."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alternatives import followed
from conftest import ZBV, Cli, Refused
from lightning.pytorch import LightningModule
from small.task import Classification
from torch import nn

from onecurve import machine
from onecurve.app.config import trainer


class NoSequence(Classification):
    """Two networks, of which nothing says which comes first."""

    def __init__(self, network: nn.Module, **parts: Any) -> None:
        super().__init__(network, **parts)
        self.other = nn.Linear(2, 2)


class Untested(LightningModule):
    """It has a step for training alone, and takes no network."""

    def __init__(self, num_classes: int, monitor: str, mode: str) -> None:
        super().__init__()

    def training_step(self, *_: Any) -> None:
        """Never called."""


PLAN = "onecurve plan model=mlp data.image_size=8"
# What is typed, and parts of the line that answers. What Hydra or the names of keys refuse ends
# with status 1, values with 2.
OF_HYDRA = {
    # Names
    "strategy=fsdb": "strategy=fsdb … ddp, dp, fsdp, mesh, pipeline … strategy=fsdp",
    "logger=null": "logger=null: must be one of … tensorboard … such as 'logger=[]'",
    "trainer.epochs=1": "did you mean trainer.max_epochs?",
    "optimizer.learning_rate=1": "optimizer.learning_rate … did you mean optimizer.lr?",
    "modle=mlp": "modle: there is no such key; did you mean model?",
    "lr=0.01": "lr: there is no such key; did you mean optimizer.lr?",
    "task.lr=1": "did you mean optimizer.lr? or, if it is an argument of small.task.",
    "epochs=3": "did you mean trainer.max_epochs or trainer.min_epochs?",
    "trainer.batch_size=8": "did you mean data.batch_size?",
    "optimizer.nesterov=true": "of small.optimizers.adamw, begin with a plus: +optimizer.nest",
    "strategy.microbatches=2": "only with pipeline or mesh; add strategy=pipeline",
    "checkpoint.mirror_to=s3://bucket": "is gone … callbacks.checkpoint.dirpath=s3://BUCKET/PATH",
    f"{PLAN} strategy=ddp": "strategy: is not in the configuration of `onecurve plan`; ",
    # Grammar
    "optimizer.lr=1e-3,1e-2": "optimizer.lr=1e-3,1e-2 … add -m",
    "trainer.max_epochs = 3": "has no value, such as trainer.max_epochs=3",
    "evaluate.py empty": "empty: has no key, such as checkpoint=empty",
    "callbacks=[swa, ema]": "callbacks=[swa,: ends at a space … shell: 'callbacks=[swa, ema]'",
    "project=main(": "project=main(: cannot be parsed by Hydra … twice: 'project=\"main(\"'",
    "--cfg job data.root=it's": "error: data.root=it's: cannot be parsed by Hydra",
    "data.class_names={a:1}": "Error merging override data.class_names={a:1}",
    # A plus, a tilde
    "+strategy=ddp": "+strategy=ddp: strategy is chosen by one word; use strategy=ddp",
    "logger=csv +logger=wandb": "+logger=wandb: logger is chosen by one … use 'logger=[csv,wandb]'",
    "~callbacks=[progress,lr_monitor]": "use 'callbacks=[checkpoint,model_summary]'",
}
OURS = {
    # Values
    "optimizer.lr=fast": "optimizer.lr=fast … a number above 0 … such as optimizer.lr=",
    "seed=-1": "seed=-1 … from 0 to 4294967295",
    "trainer.precision=half": "trainer.precision=half … bf16-mixed",
    "trainer.devices=1.5": "trainer.devices=1.5: must be auto, a number from 1",
    "checkpoint=null": "checkpoint=null: must be a mapping",
    "seed=${missing}": "seed=${missing}: Interpolation key 'missing' not found",
    "seed=${oc.env:NOT_SET_ANYWHERE}": "seed=${oc.env: … NOT_SET_ANYWHERE",
    "hydra.run.dir=${missing}": "hydra.run.dir=${missing} … not found",
    "logger=wandb logger.wandb.id=a?": "logger.wandb.id=a?: must be text without /:;,#?'",
    f"logger=wandb project={129 * 'x'}": "128 characters, … such as logger.wandb.project=",
    "~seed": "error: seed is needed: add seed=",
    "+data.imagesize=8": "data.imagesize: there is no such key … data.image_size",
    "strategy=ddp +strategy.find_unused_parameter=true": "mean strategy.find_unused_parameters?",
    "model=[lenet,mlp]": "model=[lenet,mlp]: takes one, such as model=lenet",
    "callbacks=[checkpoint] +callbacks=ema": "use 'callbacks=[checkpoint,ema]'",
    "-lr=1": "-lr=1 … a key has no dash",
    "--cfg": "--cfg … expected one argument … see --help",
    # Values that do not go together
    "monitor=val/loss": "mode=max … monitor=val/loss … mode=min",
    "data.class_names=[a,b]": "data.class_names … labels go up to 9",
    "trainer.limit_val_batches=0": "no validation … use trainer.limit_val_batches=1.0, or",
    "trainer.check_val_every_n_epoch=3 trainer.max_epochs=2": "no validation … n_epoch=2, or",
    "trainer.val_check_interval=50 callbacks=[]": "(50) … (41) … check_val_every_n_epoch=null;",
    "callbacks.checkpoint.filename=last": "save_last … callbacks.checkpoint.filename=best",
    "callbacks=[gradient_accumulation]": "callbacks.gradient_accumulation.scheduling",
    "callbacks=[gradient_accumulation] trainer.accumulate_grad_batches=2 "
    "callbacks.gradient_accumulation.scheduling={0:1,4:2}": "leave one of them out",
    "callbacks=[batch_size_finder] strategy=ddp": "has several processes … with strategy=single,",
    # Devices and strategies
    "trainer.devices=2": "trainer.devices=2 … strategy=ddp",
    "strategy=ddp trainer.devices=999": "at most 8 … on this machine; use trainer.devices=2",
    "trainer.accelerator=gpu": "trainer.accelerator=gpu … trainer.accelerator=cpu",
    "trainer.precision=16-mixed trainer.accelerator=cpu": "use trainer.precision=bf16-mixed",
    "strategy=ddp strategy.backend=nccl trainer.accelerator=cpu": "run is on cpu … backend=auto",
    "strategy=ddp launch.debug_rank=2": "has the ranks 0 to 1 … such as launch.debug_rank=0",
    "data.batch_size=1 strategy=ddp": "data.batch_size=1 … 2 ranks",
    "trainer.num_nodes=2": "trainer.num_nodes=2 … strategy=ddp",
    "trainer.num_nodes=2 strategy=ddp": "torchrun --nnodes=2 --nproc-per-node=2 --node-rank=0",
    "strategy.name=ddp": "strategy.name=ddp: is single for this strategy … strategy=ddp",
    "strategy=pipeline strategy.replicas=3": "replicas=3 … must divide the number of ranks, 2",
    "strategy=pipeline strategy.balance=[1,1] model=mlp": "strategy.balance=[1,1] … 6 layers",
    f"strategy=pipeline strategy.schedule={ZBV} strategy.activation_checkpointing=selective": (
        "use strategy.activation_checkpointing=full, or strategy.schedule=interleaved_1f1b"
    ),
    "strategy=pipeline compile=whole compile_backend=eager": "use compile=layer",
    "strategy=mesh strategy.pipeline=3": "a multiple of 3 ranks … use strategy.pipeline=2, or",
    "strategy=mesh strategy.replicate=2 strategy.shard=1 trainer.devices=4": "strategy.shard=auto",
    f"strategy=mesh strategy.pipeline=2 trainer.devices=4 strategy.schedule={ZBV} "
    "strategy.reshard_after_forward=true": (
        "use strategy.reshard_after_forward=false, or strategy.schedule=1f1b"
    ),
    f"{PLAN} trainer.devices=12 trainer.num_nodes=5": "trainer.devices=12: 5 nodes of h100 have",
    f"{PLAN} task._target_=test_refusals.NoSequence": "NoSequence has no sequence of layers",
    # Files and folders
    "resume=nowhere.ckpt": "resume=nowhere.ckpt … there is no such file",
    "resume=last": "resume=last … no training run … leave it out",
    "resume=empty": "resume=empty … not the directory of a training run",
    "resume=s4://bucket/run": "s4 is not a known scheme",
    "init=weights": "init.file is needed: add init.file=runs/.../checkpoints/best.ckpt",
    f"init=weights init.file={300 * 'x'}": "File name too long; give a file with weights",
    "init=/etc/passwd": "init=/etc/passwd: cannot be read … give a file that holds",
    "evaluate.py": "error: checkpoint is needed: add checkpoint=runs/.../checkpoints/best.ckpt",
    "onecurve report": "error: no SWEEP_DIR was given; onecurve report runs/DATE/TIME-sweep",
    "onecurve report nowhere": "error: nowhere: there is no such directory; give the directory of",
    "onecurve report empty": "error: empty: no job in it … give the directory of a sweep",
    "hydra.run.dir=s3://bucket/run": "a local or a mounted disk … use hydra.run.dir=runs/NAME",
    "paths.run=mine": "is the run directory; leave it out, or use hydra.run.dir=mine",
    "paths.root=/proc/nowhere": "/proc/nowhere/runs … cannot be created … paths.runs=runs",
    "logger=csv logger.csv.version=/dev/null": "/dev/null: File exists; name a place that can",
    "callbacks.checkpoint.dirpath=/proc/x": "/proc/x: cannot be created: … dirpath=checkpoints",
    "callbacks.checkpoint.dirpath=s3://": "is not an address",
    "callbacks.checkpoint.dirpath=file:///tmp/run": "use callbacks.checkpoint.dirpath=/tmp/run",
    "checkpoint.format=sharded callbacks.checkpoint.dirpath=memory://run": "use checkpoint.format=",
    "logger=wandb logger.wandb.offline=false": "wandb login … logger.wandb.offline=true",
    # Classes
    "~model": "error: model: Classification takes a network, and there is none; leave ~model out",
    "~task._target_": "task: has no class; write `_target_: my_package.my_mod",
    "task._target_=test_refusals.Untested": "Untested has no test_step; … or use test=false",
    "model._target_=small.models.lenett": "did you mean small.models.lenet?",
    "model.in_channels=${data.nothing} task._target_=small.tsk.Classification": (
        "no tsk in small; did you mean small.task.Cl"
    ),
    "data._target_=pytorch_lightning.LightningDataModule": "import lightning instead of pytorch_",
    "+callbacks.x={a:1}": "callbacks.x={a:1}: has no class",
    "+model.foo=1": "model.foo: there is no such key … model has in_channels",
    "optimizer.betas=[2,3]": "optimizer: Invalid beta parameter at index 0",
}
if ZBV == "zbv":  # this torch has it
    OURS["strategy=pipeline strategy.schedule=zbv strategy.stages_per_rank=3"] = (
        "strategy.stages_per_rank=3 … stages_per_rank=auto"
    )
# Whose advice is for a sweep, or names two words.
UNFOLLOWED = {
    "callbacks=[tensorboard] ~logger.tensorboard": "add +logger=tensorboard, or use '~callbacks",
    "callbacks=[swa,gradient_accumulation] callbacks.swa.start=2 "
    "callbacks.gradient_accumulation.scheduling={0:1}": (
        "give a share of the run, such as callbacks.swa.start=0.75"
    ),
    "-m strategy=single,fsdb": "strategy=fsdb … strategy=single,fsdp",
    "-m trainer.num_nodes=2 strategy=ddp seed=1,2": "trainer.num_nodes=2 … sweep",
    "-m seed=1,2 hydra.sweep.dir=s3://bucket/run": "hydra.sweep.dir=s3://bucket/run … local",
    "-m seed=1,2 paths.root=/proc/nowhere": "hydra.sweep.dir=/proc/nowh … cannot be created",
    "-m sweep=optuna optimizer.larning_rate=interval(0.1,1)": "larning_rate … no such key",
    "-m seed=range(0)": "seed=range(0) … no values for jobs … seed=",
    "-m seed=1,2 sweep.parallel=2": "sweep.parallel=2 … sweep/launcher=joblib",
    "-m seed=1 sweep.on_failure=skip": "sweep.on_failure=skip … continue",
    "sweep=optuna": "sweep=optuna: is for a sweep; add -m and a space, such as 'optimizer.lr=tag(",
    "-m sweep=optuna seed=1": "sweep=optuna … nothing to search … optimizer.lr=",
    "-m sweep=optuna optimizer.lr=tag(log,interval(0,1))": "optimizer.lr=tag(log … interval(",
}
MISTAKES = OF_HYDRA | OURS | UNFOLLOWED
# What a file of an experiment has, and what the line must say.
FILES = {
    "# @package _global_\ndefaults:\n  - model: mlp\n": "write `override /model: mlp` into",
    "defaults:\n  - override /model: mlp\n": "begin the file that changes it with the line `# @pac",
    "# @package _global_\n- seed\n": "experiment/mine.yaml: is a list; write a line `KEY: VALUE`",
    "# @package _global_\noptimizer:\n\tlr: 1\n": "mine.yaml, line 3: begins with a tab; indent",
    "# @package _global_\noptimizer: 3\n": "optimizer=3: must be a mapping, such as 'optimizer={",
    '# @package _global_\ntrainer:\n  max_epochs: "3"\n': 'trainer.max_epochs="3": must be a whole',
}


@pytest.fixture(autouse=True)
def _no_gpu_no_account(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    for module in (machine, trainer):
        monkeypatch.setattr(module, "count_cores", lambda: 2)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def command_of(typed: str) -> list[str]:
    """A script and its words; train.py where none is typed."""
    words = typed.split()
    return words if words[0] == "onecurve" or words[0].endswith(".py") else ["train.py", *words]


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_gets_one_line_that_helps_and_leaves_nothing(
    cli: Cli, is_accepted: Callable[..., bool], tmp_path: Path, typed: str
) -> None:
    """The commands that the line proposes are accepted."""
    (tmp_path / "empty").mkdir()
    script, *words = command_of(typed)
    outcome = cli(script, *words)
    allowed = {1} if typed in OF_HYDRA else {1, 2} if typed in UNFOLLOWED else {2}
    assert outcome.status in allowed, outcome.err
    assert len(outcome.err.splitlines()) == 1, outcome.err
    for part in MISTAKES[typed].split(" … "):
        assert part in outcome.err
    assert files(tmp_path) == {"empty"}
    if script == "train.py" and typed not in UNFOLLOWED:
        for command in followed(outcome.err, words):
            assert is_accepted(*command), (outcome.err, command)


@pytest.mark.parametrize("content", FILES)
def test_a_mistake_in_a_file_gets_one_line(cli: Cli, tmp_path: Path, content: str) -> None:
    file = tmp_path / "configs/experiment/mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(content)
    outcome = cli("train.py", f"hydra.searchpath=[file://{tmp_path}/configs]", "+experiment=mine")
    assert outcome.status in (1, 2)
    assert len(outcome.err.splitlines()) == 1, outcome.err
    assert FILES[content] in outcome.err
    assert {path.name for path in tmp_path.iterdir()} == {"configs"}


def test_a_network_that_no_task_takes_is_not_resolved(cli: Cli) -> None:
    task = "task._target_=test_refusals.Untested"
    outcome = cli("train.py", task, "model.in_channels=${data.no}", "callbacks=ema")
    replaced, said, error = outcome.err.splitlines()
    assert replaced == (
        "callbacks=ema: replaces checkpoint, lr_monitor, progress, model_summary; "
        "+callbacks=ema adds to them"
    )
    assert said.endswith("not used, as the task takes no network; leave it out")
    assert error == "error: Untested has no test_step; write one, or use test=false"


# What a module has, and the line about a class in it.
MODULES = {
    "import torch\nclass Part(torch.nn.Module)\n": (
        "error: {file}, line 2: expected ':' (SyntaxError); correct it"
    ),
    "import nopackage\nPart = 1\n": (
        "error: {key}: ModuleNotFoundError: No module named 'nopackage' (broken_{key}.py, line 1)"
        "; HYDRA_FULL_ERROR=1 shows the traceback"
    ),
}


@pytest.mark.parametrize("key", ["task", "model"])
def test_a_module_that_python_cannot_import_gets_one_line(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / f"broken_{key}.py"
    for content, line in MODULES.items():
        file.write_text(content)
        said = refused("train.py", f"{key}._target_=broken_{key}.Part")
        assert said == line.format(file=file, key=key)
        assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {file.name}


def test_an_error_with_a_line_break_is_one_line(cli: Cli, tmp_path: Path) -> None:
    # Quoted, Hydra can read it, and what is wrong with it is one line, too.
    words = {
        "project=a\nb": 1,
        "callbacks.check\npoint.filename=a": 1,
        "a\r\n": 1,
        "mode='a\nb'": 2,
    }
    for word, status in words.items():
        outcome = cli("train.py", word)
        assert (outcome.status, outcome.err.count("\n")) == (status, 1), outcome.err
    assert outcome.err.startswith("error: mode=a\\nb: must be one of min, max")
    assert files(tmp_path) == set()


def test_errors_of_constructors_have_a_traceback_with_hydra_full_error(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    outcome = cli("train.py", "optimizer.betas=[2,3]", "logger=csv", "callbacks=[]")
    assert outcome.status == 2
    assert "Traceback (most recent call last)" in outcome.err
    assert outcome.err.splitlines()[-1].startswith("error: optimizer: Invalid beta parameter")
    assert outcome.runs == []
