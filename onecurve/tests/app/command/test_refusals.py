"""Mistakes on the command line get one clear line, and leave nothing behind."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alternatives import followed
from conftest import ZBV, Cli, Refused, one_of_a_kind
from lightning.pytorch import LightningModule
from omegaconf import OmegaConf
from small.task import Classification
from torch import nn

from onecurve import machine
from onecurve.app.config import trainer
from onecurve.app.config.validate import validate
from onecurve.errors import UserError


class NoSequence(Classification):
    """Two networks, of which nothing says which comes first."""

    def __init__(self, network: nn.Module, **parts: Any) -> None:
        super().__init__(network, **parts)
        self.other = nn.Linear(2, 2)


class Untested(LightningModule):
    """It has a step for training alone."""

    def __init__(self, num_classes: int, monitor: str, mode: str) -> None:
        super().__init__()

    def training_step(self, *_: Any) -> None:
        """Never called."""


class Mixin:
    """Another first base."""


class Derived(Mixin, Untested):
    """It takes no network either."""


SEARCH = "-m sweep=optuna optimizer.lr=tag(log,interval(1e-5,1e-1))"
# What is typed, and parts of the line that answers. What Hydra or the names of keys refuse ends
# with status 1, values with 2.
OF_HYDRA = {
    "+callbacks=ema callbacks.ema.decya=1": "callbacks.ema.decya … callbacks.ema.decay",
    "strategy=dpp": "such as strategy=ddp",
    "logger=null": "logger=null: must be one of … tensorboard … such as 'logger=[]'",
    "callbacks=null": "callbacks=null: must be one of … swa … such as 'callbacks=[]'",
    "debug=true": "debug=true: must be one of … limit … such as debug=",
    "callbacks=[swa, ema]": "callbacks=[swa,: ends at a space … shell: 'callbacks=[swa, ema]'",
    "strategy=fsdb": "strategy=fsdb … ddp, dp, fsdp, mesh, pipeline … strategy=fsdp",
    "callbacks=[chekpoint]": "callbacks=chekpoint … such as 'callbacks=[checkpoint]'",
    "callbacks=[checkpoint,swaa]": "callbacks=swaa: must be … such as 'callbacks=[checkpoint,swa]'",
    "+callbacks=[ema,swaa]": "callbacks=swaa: must be … such as '+callbacks=[ema,swa]'",
    "trainer.max_epoch=1": "did you mean trainer.max_epochs",
    "optimizer.lr=1e-3,1e-2": "optimizer.lr=1e-3,1e-2 … add -m",
    "optimizer.learning_rate=1": "optimizer.learning_rate … did you mean optimizer.lr?",
    "optimizer.wd=1": "optimizer.wd … did you mean optimizer.weight_decay?",
    "~callbacks.checkpiont": "callbacks.checkpiont … did you mean callbacks.checkpoint",
    "~callbacks.ema": "callbacks.ema: there is no such key; callbacks has checkpoint, lr_monitor",
    "strategy.microbatches=2": "only with pipeline or mesh; add strategy=pipeline",
    "checkpoint.mirror_to=s3://bucket": "is gone … callbacks.checkpoint.dirpath=s3://BUCKET/PATH",
    "launch.secret=short": "launch.secret: was removed; torchrun or srun … --node-rank=0",
    "~trainer trainer.max_epochs=1": "trainer.max_epochs: there is no such key; ",
    "optimizer.lr 0.01": "optimizer.lr: has no value, such as optimizer.lr=0.01",
    "project=main(": "project=main(: cannot be parsed by Hydra … twice: 'project=\"main(\"'",
    "--cfg job data.root=it's": "error: data.root=it's: cannot be parsed by Hydra",
    "größe=1": "größe is not a valid key for Hydra",
    "+strategy=ddp": "+strategy=ddp: strategy is chosen by one word; use strategy=ddp",
    "logger=csv +logger=wandb": "+logger=wandb: logger is chosen by one … use 'logger=[csv,wandb]'",
    "+callbacks=ema +callbacks=swa": (
        "use 'callbacks=[checkpoint,lr_monitor,progress,model_summary,ema,swa]'"
    ),
    "~callbacks=[progress,lr_monitor]": "use 'callbacks=[checkpoint,model_summary]'",
    "~callbacks=progress": "use 'callbacks=[checkpoint,lr_monitor,model_summary]'",
    "~callbacks": "~callbacks: callbacks is chosen by one word; use 'callbacks=[]'",
    "optimizer=sgd +optimizer=adamw": "optimizer is chosen by one word; use optimizer=adamw",
    "+debug=limit": "+debug=limit: debug is chosen by one word; use debug=limit",
    "+sweep/launcher=joblib": "use sweep/launcher=joblib",
    "modle=mlp": "modle: there is no such key; did you mean model?",
    "lr=0.01": "lr: there is no such key; did you mean optimizer.lr?",
    "epochs=3": "did you mean trainer.max_epochs or trainer.min_epochs?",
    "device=1": "did you mean trainer.devices?",
    "trainer.batch_size=8": "did you mean data.batch_size?",
    "optimizer.nesterov=true": (
        "if it is an argument of small.optimizers.adamw, begin with a plus: +optimizer.nesterov=..."
    ),
    "nothing.like=1": "there is no such key; leave it out, or see `--cfg job` for all",
    "trainer.max_epochs = 3": "has no value, such as trainer.max_epochs=3",
    "data.class_names={a:1}": "Error merging override data.class_names={a:1}",
    "onecurve parity parity.step=4": "there is no such key; did you mean parity.steps?",
    "evaluate.py empty": "empty: has no key, such as checkpoint=empty",
    "empty": "empty: has no key, such as resume=empty",
    "onecurve export checkpoint=x.ckpt strategy=ddp": "strategy: is not in … of `onecurve export`",
    "onecurve parity resume=last": "resume: is not in … of `onecurve parity`; leave it out",
    "hydra.callbacks=null": "Error merging override hydra.callbacks=null",
}
OURS = {
    "+checkpoint.on_failure=stop": "was removed; leave it out, also in the files of configs/",
    "monitor=val/loss": "mode=max … monitor=val/loss … mode=min",
    "optimizer.lr=fast": "optimizer.lr=fast … a number above 0 … such as optimizer.lr=",
    "optimizer.betas=3": "optimizer.betas=3 … a list … [0.9,0.999]",
    "seed=-1": "seed=-1 … from 0 to 4294967295",
    "mode=best": "mode=best … min, max",
    "trainer.precision=half": "trainer.precision=half … bf16-mixed",
    "trainer.precision=16-mixed trainer.accelerator=cpu": "use trainer.precision=bf16-mixed",
    "trainer.sync_batchnorm=3": "trainer.sync_batchnorm=3 … true or false",
    "trainer.devices=2": "trainer.devices=2 … strategy=ddp",
    "trainer.devices=0 strategy=ddp": "trainer.devices=0 … trainer.devices=2",
    "strategy=ddp trainer.devices=999": "at most 8 … on this machine; use trainer.devices=2",
    "trainer.devices=two strategy=ddp": "trainer.devices=two … trainer.devices=2",
    "+data.imagesize=8": "data.imagesize: there is no such key … data.image_size",
    "data.class_names=[a,b]": "data.class_names … labels go up to 9",
    "trainer.num_nodes=2": "trainer.num_nodes=2 … strategy=ddp",
    "trainer.num_nodes=2 strategy=dp": "trainer.num_nodes=2 … one process … strategy=ddp",
    "trainer.num_nodes=2 strategy=ddp": (
        "torchrun --nnodes=2 --nproc-per-node=2 --node-rank=0 --master-addr=HOST"
    ),
    "-m trainer.num_nodes=2 strategy=ddp seed=1,2": "trainer.num_nodes=2 … sweep",
    "data.batch_size=1 strategy=ddp": "data.batch_size=1 … 2 ranks",
    **{
        f"strategy={name} strategy.backend=nccl trainer.accelerator=cpu": (
            "strategy.backend=nccl … this run is on cpu … strategy.backend=auto"
        )
        for name in ("ddp", "fsdp", "pipeline", "tensor", "mesh")
    },
    "trainer.accelerator=gpu": "trainer.accelerator=gpu … trainer.accelerator=cpu",
    "trainer.limit_val_batches=0": "no validation … use trainer.limit_val_batches=1.0, or",
    "logger=wandb logger.wandb.offline=false": "wandb login … logger.wandb.offline=true",
    "logger=wandb logger.wandb.id=a?": "logger.wandb.id=a?: must be text without /:;,#?'",
    "logger=csv logger.csv.version=/dev/null": "/dev/null: File exists; name a place that can",
    "logger=csv logger.csv.save_dir=/dev/null": "/dev/null: File exists; name a place that can",
    "logger=wandb project=a/b:c": "logger.wandb.project=a/b:c: must be text of at most 128 chara",
    f"logger=wandb project={129 * 'x'}": "128 characters, … such as logger.wandb.project=",
    "resume=nowhere.ckpt": "resume=nowhere.ckpt … there is no such file",
    "resume=last": "resume=last … no training run … leave it out",
    "resume=empty": "resume=empty … not the directory of a training run",
    "hydra.run.dir=s3://bucket/run": "a local or a mounted disk … use hydra.run.dir=runs/NAME",
    "-m seed=1,2 hydra.sweep.dir=s3://bucket/run": "hydra.sweep.dir=s3://bucket/run … local",
    "callbacks.checkpoint.dirpath=/proc/x": "/proc/x: cannot be created: … dirpath=checkpoints",
    "callbacks.checkpoint.filename=last": "save_last … callbacks.checkpoint.filename=best",
    "+launch.rendezvous=a:1": "launch.rendezvous: was removed; torchrun or srun starts the ranks",
    "resume=/dev/zero": "resume=/dev/zero: is neither a file nor a folder; give last",
    "checkpoint=sharded": "such as 'checkpoint={format:file,async:false}'",
    "data.num_classes=two": "error: data.num_classes=two: must be a whole number from 2",
    "seed=${missing}": "seed=${missing}: Interpolation key 'missing' not found",
    "seed=${oc.env:NOT_SET_ANYWHERE}": "seed=${oc.env: … NOT_SET_ANYWHERE",
    "hydra.run.dir=${missing}": "hydra.run.dir=${missing} … not found",
    "callbacks.checkpoint.filename=[a]": "filename=[a]: must be text or null",
    "trainer.devices=1.5": "trainer.devices=1.5: must be auto, a number from 1",
    "trainer.devices=": "trainer.devices=: must be auto",
    "trainer.limit_val_batches=1.5": "a whole number from 0 or a number from 0 to 1",
    "trainer.val_check_interval=0": "a whole number from 1 or a number above 0 to 1",
    "trainer.max_time=5": "trainer.max_time=5 … days:hours:minutes:seconds",
    "+trainer.max_epoch=1": "trainer.max_epoch: there is no … trainer.max_epochs",
    "checkpoint=null": "checkpoint=null: must be a mapping",
    "paths.run=mine": "is the run directory; leave it out, or use hydra.run.dir=mine",
    "trainer.accumulate_grad_batches=99999999999999999999": "a whole number from 1 to 2147483648",
    "paths.runs=null": "paths.runs=null: must be a folder",
    "paths.root=/proc/nowhere": "/proc/nowhere/runs … cannot be created … paths.runs=runs",
    "-m seed=1,2 paths.root=/proc/nowhere": "hydra.sweep.dir=/proc/nowh … cannot be created",
    "paths.runs=/dev/null/runs": "/dev/null/runs … Not a directory",
    "init=weights": "init.file is needed: add init.file=runs/.../checkpoints/best.ckpt",
    f"init=weights init.file={300 * 'x'}": "File name too long; give a file with weights",
    "-paths.root=x": "-paths.root=x: is no option … a key has no dash",
    "resume=0": "resume=0: there is no such file",
    "init=/etc/passwd": "init=/etc/passwd: cannot be read … give a file that holds",
    "~model": "error: model: Classification takes a network, and there is none; leave ~model out",
    "~seed": "error: seed is needed: add seed=",
    "+model.foo=1": "model.foo: there is no such key … model has in_channels",
    "model._target_=nope": "model._target_=nope … the dotted name of a class",
    "model._target_=nope.nope": "a function in an installed package, such as",
    "model._target_=small.models.lenett": "did you mean small.models.lenet?",
    "strategy._target_=builtins.dict": "strategy._target_=builtins.dict: makes a dict",
    "callbacks.checkpoint._target_=builtins.dict": "must be a Callback; name such a class",
    "logger.csv._target_=builtins.dict": "logger.csv must be a Logger; name such a class",
    "data._target_=builtins.dict": "data must be a LightningDataModule",
    "data._target_=pytorch_lightning.LightningDataModule": "import lightning instead of pytorch_",
    "model._target_=builtins.dict": "makes a dict, and model must be a Module",
    "+optimizer.weightdecay=1": "optimizer: … unexpected keyword argument 'weightdecay'",
    "optimizer.betas=[2,3]": "optimizer: Invalid beta parameter at index 0",
    "trainer.val_check_interval=50 callbacks=[]": (
        "trainer.val_check_interval (50) … (41) … set trainer.check_val_every_n_epoch=null;"
    ),
    "trainer.check_val_every_n_epoch=3 trainer.max_epochs=2": "no validation … n_epoch=2, or",
    "strategy.name=ddp": "strategy.name=ddp: is single for this strategy … strategy=ddp",
    "model=[lenet,mlp]": "model=[lenet,mlp]: takes one, such as model=lenet",
    "callbacks=[checkpoint] +callbacks=ema": "use 'callbacks=[checkpoint,ema]'",
    "-lr=1": "-lr=1 … a key has no dash",
    "--cfg": "--cfg … expected one argument … see --help",
    "+callbacks.x={a:1}": "callbacks.x={a:1}: has no class",
    "task._target_=test_refusals.Untested": "Untested has no test_step; … or use test=false",
    **{
        f"model.in_channels=${{data.nothing}} {typed}": said
        for typed, said in {
            "task._target_=small.task.Clasification": "mean small.task.Classification?",
            "task._target_=small.tsk.Classification": "no tsk in small; did you mean small.task.Cl",
        }.items()
    },
    "model._target_=small.modles.lenet": "no modles in small; did you mean small.models.lenet?",
    "strategy=ddp +strategy.find_unused_parameter=true": "mean strategy.find_unused_parameters?",
    "strategy=fsdp strategy.wrap=Linear": "must be layer or a list … wrap=la",
    "strategy=ddp launch.debug_rank=2": "has the ranks 0 to 1 … such as launch.debug_rank=0",
    "callbacks=[timer] callbacks.timer.duration=1h": "must be days:hours:minutes:sec",
    "callbacks=[batch_size_finder] callbacks.batch_size_finder.mode=linear": (
        "must be one of power, binsearch, such as callbacks.batch_size_finder.mode="
    ),
    **{
        f"callbacks=[batch_size_finder] strategy={name}": (
            f"error: callbacks=batch_size_finder: strategy={name} has several processes, and a "
            "rank that runs out of memory leaves the others waiting; … with strategy=single,"
        )
        for name in ("ddp", "fsdp", "pipeline", "tensor", "mesh")
    },
    "onecurve parity strategy=pipeline strategy.microbatches=0": "strategy.microbatches=0: must be",
    **{
        f"{script}{typed}": said
        for script in ("evaluate.py", "predict.py", "onecurve export")
        for typed, said in {
            " checkpoint=nowhere.ckpt": "error: checkpoint=nowhere.ckpt: there is no such file",
            "": "error: checkpoint is needed: add checkpoint=runs/.../checkpoints/best.ckpt",
            " checkpoint=null": "error: checkpoint=null: must be a checkpoint file, such as runs/",
        }.items()
    },
}
OURS |= {
    "onecurve report": "error: no SWEEP_DIR was given; onecurve report runs/DATE/TIME-sweep",
    "onecurve report nowhere": "error: nowhere: there is no such directory; give the directory of",
    "onecurve report empty": "error: empty: no job in it … give the directory of a sweep",
}
PLAN = "onecurve plan model=mlp data.image_size=8"
OF_HYDRA |= {
    f"{PLAN} plan.gup=h100": "plan.gup: there is no such key; did you mean plan.gpu",
    f"{PLAN} plan.measure=true": "plan.measure: was removed; a plan takes all times from the rates",
    f"{PLAN} plan.picture=null": "plan.picture: was removed; the table that is printed has all",
    f"{PLAN} strategy=ddp": "strategy: is not in the configuration of `onecurve plan`; ",
}
OURS |= {
    f"{PLAN} plan.gpu=h1000": "plan.gpu=h1000: must be one of a100, h100",
    f"{PLAN} plan.top=0": "plan.top=0: must be a whole number from 1",
    f"{PLAN} trainer.devices=0": "trainer.devices=0: must be a number from 1",
    f"{PLAN} trainer.devices=12 trainer.num_nodes=5": "trainer.devices=12: 5 nodes of h100 have",
    f"{PLAN} task._target_=test_refusals.NoSequence": "NoSequence has no sequence of layers",
}
# Whose advice is for a sweep, or names two words.
UNFOLLOWED = {
    "callbacks=[tensorboard] ~logger.tensorboard": "add +logger=tensorboard, or use '~callbacks",
    "callbacks=[swa,gradient_accumulation] callbacks.swa.start=2 "
    "callbacks.gradient_accumulation.scheduling={0:1}": (
        "give a share of the run, such as callbacks.swa.start=0.75"
    ),
    "-m optimizer.larning_rate=1,2": "optimizer.larning_rate … no such key",
    "-m strategy=single,fsdb": "strategy=fsdb … strategy=single,fsdp",
    "-m seed=1,2 sweep/launcher=slrm": "sweep/launcher=slrm … slurm",
    "-m sweep=optuna optimizer.larning_rate=interval(0.1,1)": "larning_rate … no such key",
    "-m seed=range(0)": "seed=range(0) … no values for jobs … seed=",
    "-m optimizer.lr=interval(0.1,1)": "lr=interval(0.1,1) … optimizer.lr=0.1,0.2 … sweep=optuna",
    "-m seed=1,2 sweep.parallel=2": "sweep.parallel=2 … sweep/launcher=joblib",
    "-m seed=1 sweep.on_failure=skip": "sweep.on_failure=skip … continue",
    "sweep=optuna": (
        "sweep=optuna: is for a sweep; add -m and a space, such as "
        "'optimizer.lr=tag(log, interval(1e-4, 1e-1))'"
    ),
    "-m sweep=optuna seed=1": "sweep=optuna … nothing to search … optimizer.lr=",
    f"{SEARCH} sweep.objective=[val/acc,val/loss]": "sweep.objective=[val/acc,val/loss] … text",
    f"{SEARCH} sweep.trials=0": "sweep.trials=0 … sweep.trials=30",
    "-m sweep=optuna optimizer.lr=tag(log,interval(0,1))": "optimizer.lr=tag(log … interval(",
}
OURS |= {
    f"strategy=pipeline {typed}": said
    for typed, said in {
        "strategy.replicas=3": "strategy.replicas=3 … must divide the number of ranks, 2",
        "strategy.schedule=1f2b": "strategy.schedule=1f2b … such as strategy.schedule=1f1b",
        "strategy.balance=even": "strategy.balance=even … auto or a list … strategy.balance=auto",
        "strategy.balance=[1,1] model=mlp": "strategy.balance=[1,1] … 6 layers",
        "strategy.schedule=gpipe trainer.devices=7 model=mlp": "6 layers … trainer.devices=6",
        f"strategy.schedule={ZBV} strategy.activation_checkpointing=selective": (
            "use strategy.activation_checkpointing=full, or strategy.schedule=interleaved_1f1b"
        ),
        "compile=whole compile_backend=eager": "a rank holds only some layers; use compile=layer",
    }.items()
}
OURS |= {
    f"strategy=mesh {typed}": said
    for typed, said in {
        "strategy.pipeline=3": (
            "strategy.pipeline=3: a multiple of 3 ranks are needed, but there are 2 … "
            "use strategy.pipeline=2, or trainer.devices=3"
        ),
        "strategy.pipeline=2 strategy.shard=2": (
            "strategy.pipeline=2 strategy.shard=2: 4 ranks are needed, but there are 2 … "
            "use strategy.shard=1, or trainer.devices=4"
        ),
        "strategy.shard=1 strategy.replicate=2 trainer.devices=4": (
            "strategy.replicate=2: 2 ranks are needed, but there are 4 … use strategy.shard=auto"
        ),
        "strategy.shard=2 data.batch_size=1": "data.batch_size=1 … 2 ranks",
        f"strategy.pipeline=2 trainer.devices=4 strategy.schedule={ZBV} "
        "strategy.reshard_after_forward=true": (
            "strategy.reshard_after_forward=true … "
            "use strategy.reshard_after_forward=false, or strategy.schedule=1f1b"
        ),
    }.items()
}
OURS |= {
    "callbacks.checkpoint.dirpath=s4://bucket/run": "s4 is not a known scheme; use s3://",
    "callbacks.checkpoint.dirpath=s3://": "is not an address",
    "callbacks.checkpoint.dirpath=file:///tmp/run": "use callbacks.checkpoint.dirpath=/tmp/run",
    "checkpoint.format=sharded callbacks.checkpoint.dirpath=memory://run": "use checkpoint.format=",
    "resume=s4://bucket/run": "s4 is not a known scheme",
    "resume=file:///not/there": "there is no checkpoint",
    "callbacks=[lr_finder] callbacks.lr_finder.min_lr=2": "min_lr=2: must be below max_lr=1.0, su",
}
OURS |= {
    f"callbacks=[gradient_accumulation] {typed}": said
    for typed, said in {
        "callbacks.gradient_accumulation.scheduling={0:1,4:2} trainer.accumulate_grad_batches=2": (
            "leave one of them out"
        ),
        "callbacks.gradient_accumulation.scheduling=2": (
            "callbacks.gradient_accumulation.scheduling=2: must be"
        ),
        "": "callbacks.gradient_accumulation.scheduling",
    }.items()
}
if ZBV == "zbv":  # this torch has it
    OURS["strategy=pipeline strategy.schedule=zbv strategy.stages_per_rank=3"] = (
        "strategy.stages_per_rank=3 … stages_per_rank=auto"
    )
MISTAKES = OF_HYDRA | OURS | UNFOLLOWED


# What a file of an experiment has, and what the line must say.
FILES = {
    "# @package _global_\ndefaults:\n  - model: mlp\n": "write `override /model: mlp` into",
    "defaults:\n  - override /model: mlp\n": "begin the file that changes it with the line `# @pac",
    "# @package _global_\n- seed\n": "experiment/mine.yaml: is a list; write a line `KEY: VALUE`",
    "- seed\n": "experiment/mine.yaml: is a list; write a line `KEY: VALUE`",
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


@pytest.mark.parametrize("typed", one_of_a_kind(MISTAKES, kept=[*MISTAKES][::4]))
def test_a_mistake_gets_one_line_and_leaves_nothing(cli: Cli, tmp_path: Path, typed: str) -> None:
    (tmp_path / "empty").mkdir()
    outcome = cli(*command_of(typed))
    allowed = {1} if typed in OF_HYDRA else {1, 2} if typed in UNFOLLOWED else {2}
    assert outcome.status in allowed, outcome.err
    assert len(outcome.err.splitlines()) == 1, outcome.err
    for words in MISTAKES[typed].split(" … "):
        assert words in outcome.err
    assert files(tmp_path) == {"empty"}


OF_TRAINING = [
    typed for typed in MISTAKES if command_of(typed)[0] == "train.py" and typed not in UNFOLLOWED
]


@pytest.mark.parametrize("typed", one_of_a_kind(OF_TRAINING, kept=OF_TRAINING[::9]))
def test_the_alternatives_in_an_error_are_accepted(
    cli: Cli, is_accepted: Callable[..., bool], typed: str
) -> None:
    outcome = cli("train.py", *typed.split())
    for command in followed(outcome.err, typed.split()):
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
    task = "task._target_=test_refusals.Derived"
    outcome = cli("train.py", task, "model.in_channels=${data.no}", "callbacks=ema")
    replaced, said, error = outcome.err.splitlines()
    assert replaced == (
        "callbacks=ema: replaces checkpoint, lr_monitor, progress, model_summary; "
        "+callbacks=ema adds to them"
    )
    assert said.endswith("not used, as the task takes no network; leave it out")
    assert error == "error: Derived has no test_step; write one, or use test=false"


def test_a_task_without_a_class_is_told_before_what_refers_to_nothing() -> None:
    config = OmegaConf.create({"task": {"lr": 1}, "model": {"inputs": "${data.nothing}"}})
    with pytest.raises(UserError, match=r"^task: has no class; write `_target_: my_package.my_mod"):
        validate(config, "train", dict)


@pytest.mark.parametrize("typed", ["task._target_=bad_task.Task", "model._target_=bad_net.Network"])
def test_a_file_that_python_cannot_read_gets_one_line(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    module = typed.partition("=")[2].partition(".")[0]
    file = tmp_path / f"{module}.py"
    file.write_text("import torch\nclass Task(torch.nn.Module)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    line = f"error: {file}, line 2: expected ':' (SyntaxError); correct it"
    assert refused("train.py", typed) == line
    assert files(tmp_path) == {file.name}


@pytest.mark.parametrize("key", ["task", "model"])
def test_a_file_that_imports_what_is_not_installed_gets_one_line(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    (tmp_path / f"broken_{key}.py").write_text("import nopackage\nPart = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    outcome = cli("train.py", f"{key}._target_=broken_{key}.Part")
    assert outcome.status == 2
    assert outcome.err == (
        f"error: {key}: ModuleNotFoundError: No module named 'nopackage' (broken_{key}.py, line 1)"
        "; HYDRA_FULL_ERROR=1 shows the traceback\n"
    )


@pytest.mark.parametrize("word", ["project=a\nb", "callbacks.check\npoint.filename=a", "a\r\n"])
def test_an_error_with_a_line_break_is_one_line(cli: Cli, tmp_path: Path, word: str) -> None:
    outcome = cli("train.py", word)
    assert outcome.status == 1
    assert outcome.err.count("\n") == 1, outcome.err
    # Quoted, Hydra can read it, and what is wrong with it is one line, too.
    outcome = cli("train.py", "mode='a\nb'")
    assert (outcome.status, outcome.err.count("\n")) == (2, 1), outcome.err
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
