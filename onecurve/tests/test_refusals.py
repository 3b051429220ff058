"""Mistakes on the command line get one clear line, and leave nothing behind."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from alternatives import followed
from conftest import Cli, one_of_a_kind

from onecurve import machine
from onecurve.config import commands, trainer

# What is typed: (exit status, what the line must say).
MISTAKES = {
    "+callbacks=ema callbacks.ema.decya=1": (1, ["callbacks.ema.decya", "callbacks.ema.decay"]),
    "monitor=val/loss": (2, ["mode=max", "monitor=val/loss", "mode=min"]),
    "strategy=deepspeed": (1, ["such as strategy=fsdp"]),
    "strategy=deepspeed_stage_2": (1, ["such as strategy=fsdp"]),
    "strategy=dpp": (1, ["such as strategy=ddp"]),
    "callbacks=[swa, ema]": (1, ["a blank", "leave it out", "quote", ": 'callbacks=[swa, ema]'"]),
    "strategy=ddp trainer.max_time={hours: 1, days: 2}": (1, ["'trainer.max_time={hours: 1, "]),
    "strategy=fsdb": (1, ["strategy=fsdb", "ddp, dp, fsdp, mesh, pipeline", "strategy=fsdp"]),
    "callbacks=[chekpoint]": (1, ["callbacks=chekpoint", "such as callbacks=checkpoint"]),
    "stratgy=ddp": (1, ["stratgy", "did you mean strategy"]),
    "trainer.max_epoch=1": (1, ["trainer.max_epoch", "did you mean trainer.max_epochs"]),
    "optimizer.lr=1e-3,1e-2": (1, ["optimizer.lr=1e-3,1e-2", "add -m"]),
    "seed=range(3)": (1, ["seed=range(3)", "add -m"]),
    "optimizer.learning_rate=1": (1, ["optimizer.learning_rate", "did you mean optimizer.lr?"]),
    "optimizer.wd=1": (1, ["optimizer.wd", "did you mean optimizer.weight_decay?"]),
    "~callbacks.checkpiont": (1, ["callbacks.checkpiont", "did you mean callbacks.checkpoint"]),
    "optimizer.lr=fast": (2, ["optimizer.lr=fast", "a number above 0", "optimizer.lr=0.0"]),
    "optimizer.lr=-1": (2, ["optimizer.lr=-1", "a number above 0"]),
    "optimizer.betas=3": (2, ["optimizer.betas=3", "a list", "[0.9,0.999]"]),
    "data.batch_size=0": (2, ["data.batch_size=0", "from 1", "such as data.batch_size=32"]),
    "data.batch_size=2.5": (2, ["data.batch_size=2.5", "a whole number"]),
    "seed=-1": (2, ["seed=-1", "from 0 to 4294967295"]),
    "mode=best": (2, ["mode=best", "min, max"]),
    "trainer.precision=half": (2, ["trainer.precision=half", "bf16-mixed"]),
    "trainer.precision=16-mixed trainer.accelerator=cpu": (2, ["use trainer.precision=bf16-mixed"]),
    "trainer.sync_batchnorm=3": (2, ["trainer.sync_batchnorm=3", "true or false"]),
    "trainer.devices=2": (2, ["trainer.devices=2", "strategy=ddp"]),
    "trainer.devices=0 strategy=ddp": (2, ["trainer.devices=0", "trainer.devices=2"]),
    "trainer.devices=999 strategy=ddp trainer.accelerator=cpu": (
        2,
        [
            "trainer.devices=999: at most 8",
            "more than its 2 cores is only useful to try things out); use trainer.devices=2",
        ],
    ),
    "trainer.devices=two strategy=ddp": (2, ["trainer.devices=two", "trainer.devices=2"]),
    "trainer.profiler=cprofile": (2, ["trainer.profiler=cprofile", "simple, advanced"]),
    "+data.imagesize=8": (2, ["data.imagesize: there is no such key", "data.image_size"]),
    "+data.augment.crop={size:8}": (2, ["crop has no class", "+data.augment.crop._target_=..."]),
    "data.class_names=[a,b]": (2, ["data.class_names", "labels go up to 9"]),
    "trainer.num_nodes=2": (2, ["trainer.num_nodes=2", "strategy=ddp"]),
    "trainer.num_nodes=2 strategy=dp": (2, ["trainer.num_nodes=2", "one process", "strategy=ddp"]),
    "trainer.num_nodes=2 strategy=ddp": (2, ["trainer.num_nodes=2", "launch.rendezvous=HOST:PORT"]),
    "trainer.num_nodes=2 strategy=ddp launch.rendezvous=host": (
        2,
        ["launch.rendezvous=host:", "such as launch.rendezvous=10.0.0.1:29500"],
    ),
    "trainer.num_nodes=2 strategy=ddp launch.rendezvous=host:99999": (2, ["from 1 to 65535"]),
    "strategy=ddp launch.rendezvous=host:29500": (2, ["add trainer.num_nodes=2"]),
    "-m launch.nodes=2 strategy=ddp seed=1,2": (2, ["launch.nodes=2", "use launch.nodes=null"]),
    "-m trainer.num_nodes=2 strategy=ddp seed=1,2": (2, ["trainer.num_nodes=2", "sweep"]),
    "data.batch_size=1 strategy=ddp": (2, ["data.batch_size=1", "2 ranks"]),
    "strategy=ddp strategy.backend=nccl trainer.accelerator=cpu": (
        2,
        ["strategy.backend=nccl", "this run is on cpu", "strategy.backend=auto"],
    ),
    "strategy=fsdp strategy.backend=nccl trainer.accelerator=cpu": (
        2,
        ["strategy.backend=nccl", "this run is on cpu", "strategy.backend=auto"],
    ),
    "strategy=pipeline strategy.backend=nccl trainer.accelerator=cpu": (
        2,
        ["strategy.backend=nccl", "this run is on cpu", "strategy.backend=auto"],
    ),
    "strategy=tensor strategy.backend=nccl trainer.accelerator=cpu": (
        2,
        ["strategy.backend=nccl", "this run is on cpu", "strategy.backend=auto"],
    ),
    "strategy=mesh strategy.backend=nccl trainer.accelerator=cpu": (
        2,
        ["strategy.backend=nccl", "this run is on cpu", "strategy.backend=auto"],
    ),
    "strategy=ddp strategy.backend=mpi": (2, ["strategy.backend=mpi", "auto, gloo, nccl"]),
    "trainer.accelerator=gpu": (2, ["trainer.accelerator=gpu", "trainer.accelerator=cpu"]),
    "trainer.limit_val_batches=0": (2, ["monitor=val/acc", "monitor=train/loss mode=min"]),
    "logger=wandb logger.wandb.offline=false": (2, ["wandb login", "logger.wandb.offline=true"]),
    "resume=nowhere.ckpt": (2, ["resume=nowhere.ckpt", "there is no such file"]),
    "resume=last": (2, ["resume=last", "no training run", "leave it out"]),
    "resume=empty": (2, ["resume=empty", "not the directory of a training run"]),
    "init=nowhere.ckpt": (2, ["init.file=nowhere.ckpt", "there is no such file"]),
    "strategy.microbatches=2": (1, ["only with pipeline or mesh; add strategy=pipeline"]),
    "hydra.run.dir=s3://bucket/run": (2, ["a local disk", "use hydra.run.dir=runs/NAME"]),
    "paths.runs=s3://bucket": (2, ["a local disk", "use hydra.run.dir=runs/NAME"]),
    "-m seed=1,2 hydra.sweep.dir=s3://bucket/run": (
        2,
        ["hydra.sweep.dir=s3://bucket/run", "local"],
    ),
    "callbacks.checkpoint.dirpath=s3://bucket": (
        2,
        ["dirpath=s3://bucket", "a local or mounted disk"],
    ),
    "callbacks.checkpoint.dirpath=/proc/x": (
        2,
        ["callbacks.checkpoint.dirpath=/proc/x: cannot be created: ", "dirpath=checkpoints"],
    ),
    "callbacks.checkpoint.filename=last": (2, ["save_last", "callbacks.checkpoint.filename=best"]),
    "callbacks.checkpoint.filename=mine callbacks.checkpoint.save_top_k=-1": (
        2,
        ["save_top_k=-1", "'callbacks.checkpoint.filename=\"mine-{epoch}-{step}\"'"],
    ),
    "launch.secret=short": (1, ["launch.secret: nodes no longer sign", "launch.node_rank=0, 1"]),
    "+launch.secret_file=nowhere": (2, ["launch.secret_file: nodes no longer sign", "networks.md"]),
    "launch.nodes=2": (2, ["launch.nodes=2: strategy=single", "strategy=ddp"]),
    "strategy=ddp launch.nodes=1:2": (2, ["launch.nodes=1:2: the nodes need", "HOST:PORT"]),
    "strategy=ddp launch.nodes=3:2 launch.rendezvous=a:1": (2, ["use launch.nodes=2:3"]),
    "strategy=ddp launch.nodes=few": (2, ["launch.nodes=few: must be", "MIN:MAX"]),
    "strategy=ddp launch.nodes=2 trainer.num_nodes=3 launch.rendezvous=a:1": (
        2,
        ["launch.nodes=2: but trainer.num_nodes=3", "use trainer.num_nodes=auto"],
    ),
    "strategy=ddp launch.nodes=1:2 launch.node_rank=0 launch.rendezvous=a:1": (
        2,
        ["launch.node_rank=0: torch numbers nodes that come and go", "launch.node_rank=null"],
    ),
    "strategy=ddp launch.nodes=2 launch.node_rank=2 launch.rendezvous=a:1": (
        2,
        ["launch.node_rank=2: the nodes are numbered from 0 to 1", "launch.node_rank=0"],
    ),
    "data.num_workers=1000": (2, ["data.num_workers=1000", "at most", "use data.num_workers="]),
    "data.num_workers=999 strategy=ddp": (2, ["each of the 2 ranks here"]),
    "resume=/dev/zero": (2, ["resume=/dev/zero: is neither a file nor a folder; give last"]),
    "~hydra data.batch_size=0": (2, ["~hydra: takes away what checks a run", "leave it out"]),
    "hydra.callbacks=null seed=-1": (2, ["hydra.callbacks=null", "+hydra.callbacks.NAME"]),
    "-m ~hydra.callbacks.sweep seed=1,2": (2, ["~hydra.callbacks.sweep", "leave it out"]),
    "checkpoint=sharded": (2, ["such as 'checkpoint={format:file,async:false,"]),
    "checkpoint.format=shards": (2, ["one of file, sharded, such as checkpoint.format=sharded"]),
    "callbacks=null": (1, ["callbacks=null: is a group", "--help"]),
    # The task has the same number, by reference.
    "data.num_classes=two": (2, ["error: data.num_classes=two: must be a whole number from 2"]),
    "seed=${missing}": (2, ["seed=${missing}: Interpolation key 'missing' not found"]),
    "seed=${oc.env:NOT_SET_ANYWHERE}": (2, ["seed=${oc.env:", "NOT_SET_ANYWHERE"]),
    "hydra.run.dir=${missing}": (2, ["hydra.run.dir=${missing}", "not found"]),
    "data.val_size=nan": (2, ["data.val_size=nan", "a whole number", "data.val_size=200"]),
    "data.split_seed=inf": (2, ["data.split_seed=inf", "a whole number"]),
    "data.mean=[nan]": (2, ["data.mean=[nan]", "each entry a number"]),
    "data.mean=[a]": (2, ["data.mean=[a]", "each entry a number"]),
    "scheduler.warmup=nan": (2, ["scheduler.warmup=nan", "a number"]),
    # A number would be a text: 3.5.ckpt.
    "callbacks.checkpoint.filename=[a]": (2, ["filename=[a]: must be text or null"]),
    "callbacks.checkpoint.every_n_train_steps=nan": (2, ["=nan: must be a whole number", "=null"]),
    "callbacks.checkpoint.save_top_k=nan": (2, ["callbacks.checkpoint.save_top_k=nan"]),
    "callbacks.lr_monitor.logging_interval=abc": (2, ["must be one of step, epoch, null"]),
    "trainer.devices=1.5": (2, ["trainer.devices=1.5: must be auto, a number from 1"]),
    "trainer.devices=null": (2, ["trainer.devices=null: must be auto"]),
    "trainer.devices=": (2, ["trainer.devices=: must be auto"]),
    "trainer.devices=true": (2, ["trainer.devices=true: must be auto"]),
    "trainer.devices=[]": (2, ["trainer.devices=[]: must be auto"]),
    "trainer.devices=[a] strategy=ddp": (2, ["trainer.devices=[a]: must be auto"]),
    "trainer.limit_train_batches=-1": (2, ["a whole number from 0 or a number from 0 to 1"]),
    "trainer.limit_val_batches=1.5": (2, ["a whole number from 0 or a number from 0 to 1"]),
    "trainer.overfit_batches=nan": (2, ["trainer.overfit_batches=nan"]),
    "trainer.val_check_interval=0": (2, ["a whole number from 1 or a number above 0 to 1"]),
    "trainer.max_time=5": (2, ["trainer.max_time=5", "days:hours:minutes:seconds"]),
    "trainer.max_time={parsecs:1}": (2, ["trainer.max_time.parsecs=1", "{hours:12}"]),
    "trainer.min_epochs=abc": (2, ["trainer.min_epochs=abc", "a whole number from 1"]),
    "trainer.benchmark=abc": (2, ["trainer.benchmark=abc", "true or false"]),
    "+trainer.max_epoch=1": (2, ["trainer.max_epoch: there is no", "trainer.max_epochs"]),
    "+launch.max_restart=1": (2, ["launch.max_restart: there is no such", "launch.max_restarts"]),
    "checkpoint=null": (2, ["checkpoint=null: must be a mapping"]),
    "paths.runs=null": (2, ["paths.runs=null: must be a folder"]),
    "paths.runs=": (2, ["paths.runs=: must be a folder"]),
    "paths.root=/proc/nowhere": (2, ["/proc/nowhere/runs", "cannot be made", "paths.runs=runs"]),
    "paths.runs=/dev/null/runs": (2, ["/dev/null/runs", "Not a directory"]),
    f"init=weights init.file={300 * 'x'}": (2, ["File name too long; give a file with weights"]),
    "callbacks.checkpoint.monitor=[]": (2, ["callbacks.checkpoint.monitor=[]: must be text"]),
    "-paths.root=x": (2, ["-paths.root=x: is no option", "a key has no dash"]),
    "resume=0": (2, ["resume=0: there is no such file"]),
    "resume=[a]": (2, ["resume=[a]: there is no such file"]),
    "init=/etc/passwd": (2, ["init=/etc/passwd: cannot be read", "give a file that holds"]),
    "~model": (2, ["~model: a run needs it"]),
    "~launch": (2, ["~launch: a run needs it"]),
    "~checkpoint.format": (2, ["~checkpoint.format: a run needs it"]),
    "~trainer.devices": (2, ["~trainer.devices: a run needs it"]),
    "~seed": (2, ["~seed: a run needs it"]),
    "~trainer trainer.max_epochs=1": (1, ["~trainer: takes away what another word changes"]),
    "+model.foo=1": (2, ["model.foo: there is no such key", "model has in_channels"]),
    "model._target_=nope": (2, ["model._target_=nope", "the dotted name of a class"]),
    "model._target_=nope.nope": (2, ["the package nope is not installed"]),
    "model._target_=small.models.lenett": (2, ["did you mean small.models.lenet?"]),
    "strategy._target_=builtins.dict": (2, ["strategy._target_=builtins.dict: makes a dict"]),
    "callbacks.checkpoint._target_=builtins.dict": (2, ["must be a Callback; name such a class"]),
    "logger.csv._target_=builtins.dict": (2, ["logger.csv must be a Logger; name such a class"]),
    "model._target_=builtins.dict": (2, ["makes a dict, and model must be a Module"]),
    "data._target_=builtins.dict": (2, ["data must be a LightningDataModule"]),
    "+optimizer.weightdecay=1": (2, ["optimizer: ", "unexpected keyword argument 'weightdecay'"]),
    "optimizer.betas=[2,3]": (2, ["optimizer: Invalid beta parameter at index 0"]),
    "optimizer.lr 0.01": (1, ["optimizer.lr: has no value, such as optimizer.lr=0.01"]),
    "optimizer.lr": (1, ["optimizer.lr: has no value"]),
    "project=main(": (1, ["project=main(: is not what Hydra", "twice: 'project=\"main(\"'"]),
    "-m project=main(": (1, ["error: project=main(: is not what Hydra", "'project=\"main(\"'"]),
    "--cfg job data.root=it's": (1, ["error: data.root=it's: is not what Hydra can read"]),
    "größe=1": (1, ["größe is no key that Hydra can read"]),
    "trainer.val_check_interval=50 callbacks=[]": (
        2,
        ["trainer.val_check_interval (50)", "(41)", "set trainer.check_val_every_n_epoch=null;"],
    ),
    "trainer.check_val_every_n_epoch=3 trainer.max_epochs=2": (
        2,
        ["there is no validation", "use trainer.check_val_every_n_epoch=2, or"],
    ),
    "strategy.name=ddp": (2, ["strategy.name=ddp: is single for this strategy", "strategy=ddp"]),
    "strategy.processes=abc": (2, ["strategy.processes=abc: is one for this strategy"]),
    "model=[lenet,mlp]": (2, ["model=[lenet,mlp]: takes one, such as model=lenet"]),
    "callbacks=[checkpoint] +callbacks=ema": (2, ["use 'callbacks=[checkpoint,ema]'"]),
    "+strategy=ddp": (1, ["+strategy=ddp: ", "leave the plus out", "use strategy=ddp"]),
    "+debug=limit": (1, ["+debug=limit: ", "leave the plus out", "use debug=limit"]),
    "+sweep/launcher=joblib": (1, ["leave the plus out", "use sweep/launcher=joblib"]),
    "-lr=1": (2, ["-lr=1", "a key has no dash"]),
    "-mode=min": (2, ["ode=min", "a key has no dash"]),
    "--cfg": (2, ["--cfg", "expected one argument", "see --help"]),
    "~optimizer._target_": (2, ["optimizer._target_ is needed", "small.optimizers.adamw"]),
    "+callbacks.x={a:1}": (2, ["callbacks.x={a:1}: has no class"]),
    "+callbacks.x=1": (2, ["callbacks.x=1: has no class"]),
    "+callbacks=gradient_accumulation callbacks.gradient_accumulation.from_epochs=[1]": (
        2,
        ["such as 'callbacks.gradient_accumulation.from_epochs=[0,4]' 'callbacks."],
    ),
    "test=null": (2, ["test=null", "true or false"]),
    "model._target_=small.modles.lenet": (
        2,
        ["there is no modles in small; did you mean small.models.lenet?"],
    ),
    "modle=mlp": (1, ["modle: there is no such key; did you mean model?"]),
    "optimizer.rl=1": (1, ["did you mean optimizer.lr?"]),
    "strategy=fdsp": (1, ["such as strategy=fsdp"]),
    "lr=0.01": (1, ["lr: there is no such key; did you mean optimizer.lr?"]),
    "epochs=3": (1, ["did you mean trainer.max_epochs or trainer.min_epochs?"]),
    "device=1": (1, ["did you mean trainer.devices?"]),
    "trainer.batch_size=8": (1, ["did you mean data.batch_size?"]),
    "trainer.gpus=1": (1, ["there is no such key; trainer has accelerator, devices"]),
    "nothing.like=1": (1, ["there is no such key; leave it out, or see `--cfg job` for all"]),
    "trainer.max_epochs = 3": (1, ["has no value, such as trainer.max_epochs=3"]),
    "data.augment=[flip]": (1, ["data.augment=[flip]: must be a mapping, such as 'data.augment={"]),
    "data.class_names={a:1}": (1, ["must be a list, such as 'data.class_names=["]),
    "strategy=ddp +strategy.find_unused_parameter=true": (
        2,
        ["did you mean strategy.find_unused_parameters?"],
    ),
    "strategy=fsdp strategy.wrap=Linear": (2, ["must be layer or min_params or a list", "wrap=la"]),
}


# What a file of an experiment has, and what the line must say.
FILES = {
    "# @package _global_\ndefaults:\n  - model: mlp\n": "write `override /model: mlp` into",
    "defaults:\n  - override /model: mlp\n": "begin the file that changes it with the line `# @pac",
    "# @package _global_\noptimizer:\n\tlr: 1\n": "found character '\\t'",
    "# @package _global_\noptimizer: 3\n": "optimizer=3: must be a mapping, such as 'optimizer={",
    '# @package _global_\ntrainer:\n  max_epochs: "3"\n': 'trainer.max_epochs="3": must be a whole',
    "- optimizer: 3\n": "the file experiment/mine.yaml holds a list",
    "# @package _global_\n- optimizer: 3\n": "the file experiment/mine.yaml holds a list",
}


@pytest.fixture(autouse=True)
def _no_gpu_no_account(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    for module in (machine, commands, trainer):
        monkeypatch.setattr(module, "count_cores", lambda: 2)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("typed", one_of_a_kind(MISTAKES, kept=[*MISTAKES][::2]))
def test_a_mistake_gets_one_line_and_leaves_nothing(cli: Cli, tmp_path: Path, typed: str) -> None:
    (tmp_path / "empty").mkdir()
    status, words = MISTAKES[typed]
    outcome = cli("train.py", *typed.split())
    assert outcome.status == status, outcome.err
    assert len(outcome.err.splitlines()) == 1, outcome.err
    for word in words:
        assert word in outcome.err
    assert files(tmp_path) == {"empty"}


@pytest.mark.parametrize("typed", one_of_a_kind(MISTAKES, kept=[*MISTAKES][::6]))
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


# Where a file that Python cannot read is named: by the task, before torch, and by what is built.
@pytest.mark.parametrize("typed", ["task._target_=broken.Task", "model._target_=broken.Network"])
def test_a_file_that_python_cannot_read_gets_one_line(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    file = tmp_path / "broken.py"
    file.write_text("import torch\nclass Task(torch.nn.Module)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    outcome = cli("train.py", typed)
    assert outcome.status == 2
    assert outcome.err == f"error: {file}, line 2: expected ':' (SyntaxError); correct it\n"
    assert files(tmp_path) == {"broken.py"}


@pytest.mark.parametrize("word", ["project=a\nb", "callbacks.check\npoint.filename=a", "a\r\n"])
def test_an_error_with_a_line_break_is_one_line(cli: Cli, tmp_path: Path, word: str) -> None:
    outcome = cli("train.py", word)
    assert outcome.status == 1
    assert outcome.err.count("\n") == 1, outcome.err
    assert "has a line break in it; leave it out" in outcome.err
    # Quoted, Hydra can read it, and what is wrong with it is one line, too.
    outcome = cli("train.py", "mode='a\nb'")
    assert (outcome.status, outcome.err.count("\n")) == (2, 1), outcome.err
    assert outcome.err.startswith("error: mode=a\\nb: must be one of min, max")
    assert files(tmp_path) == set()


@pytest.mark.parametrize("script", ["evaluate.py", "predict.py", "export.py"])
def test_a_missing_checkpoint_gets_one_line(cli: Cli, tmp_path: Path, script: str) -> None:
    outcome = cli(script, "checkpoint=nowhere.ckpt")
    assert outcome.status == 2
    assert outcome.err.startswith("error: checkpoint=nowhere.ckpt: there is no such file")
    outcome = cli(script)
    assert outcome.status == 2
    assert outcome.err.startswith("error: checkpoint is needed: add checkpoint=")
    assert files(tmp_path) == set()


def test_a_rejected_job_of_a_sweep_does_not_stop_the_others(cli: Cli) -> None:
    outcome = cli("train.py", "-m", "data.batch_size=0,64", "debug=limit", "callbacks=[]")
    assert outcome.status == 1
    assert "job 1 of 2 failed: data.batch_size=0: must be a whole number" in outcome.err
    assert [path.name for path in outcome.runs] == ["01-data.batch_size=0", "02-data.batch_size=64"]
    states = [json.loads((run / "metrics.json").read_text())["status"] for run in outcome.runs]
    assert states == ["failed", "finished"]


def test_errors_of_constructors_have_a_traceback_with_hydra_full_error(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    outcome = cli("train.py", "optimizer.betas=[2,3]", "logger=csv", "callbacks=[]")
    assert outcome.status == 2
    assert "Traceback (most recent call last)" in outcome.err
    assert outcome.err.splitlines()[-1].startswith("error: optimizer: Invalid beta parameter")
    assert outcome.runs == []
