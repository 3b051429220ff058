"""What callbacks, loggers and optimizers cannot go together with, one line for each combination."""

import netrc
import os
from collections.abc import Iterator
from pathlib import Path

from ..checkpoint.disk import cannot_be_made
from ..composed_run import ComposedRun
from ..extras import missing


def swa(run: ComposedRun, key: str) -> Iterator[str]:
    """Why its average cannot be validated, or its start not be found."""
    if run.get(f"{key}.validate") is True and run.has("ema"):
        yield (
            f"{key}.validate=true: callbacks=ema has its own average validated; use "
            f"{key}.validate=false, or '~callbacks.ema'"
        )
    start = run.get(f"{key}.start", 0)
    if run.has("gradient_accumulation") and start >= 1:
        yield (
            f"{key}.start={start}: epochs have different numbers of steps with "
            "callbacks=gradient_accumulation; give a share of the run, such as "
            f"{key}.start=0.75"
        )


def lr_finder(run: ComposedRun, key: str) -> Iterator[str]:
    """Why its range is none."""
    lowest, highest = run.get(f"{key}.min_lr"), run.get(f"{key}.max_lr")
    if lowest is not None and highest is not None and lowest >= highest:
        yield f"{key}.min_lr={lowest}: must be below max_lr={highest}, such as {key}.min_lr=1e-6"


def gradient_accumulation(run: ComposedRun, key: str) -> Iterator[str]:
    """Why the schedule is none, or what else sets the number of batches."""
    epochs = list(run.get(f"{key}.from_epochs", [0]))
    batches = list(run.get(f"{key}.batches", [1]))
    if not _is_schedule(epochs, batches):
        yield (
            f"{key}.from_epochs={epochs}: must be rising epochs from 0, with as many numbers from "
            f"1 in batches={batches}, such as '{key}.from_epochs=[0,4]' '{key}.batches=[1,2]'"
        )
    number = run.get("trainer.accumulate_grad_batches", 1)
    if number > 1:
        yield (
            f"trainer.accumulate_grad_batches={number}: callbacks=gradient_accumulation sets it "
            "from epoch to epoch; leave one of them out"
        )


def _is_schedule(epochs: list[int], batches: list[int]) -> bool:
    same_number = len(epochs) == len(batches)
    return same_number and epochs[:1] == [0] and epochs == sorted(set(epochs))


def katib(run: ComposedRun, key: str) -> Iterator[str]:
    """Why no file can be made there, on this node."""
    file = Path(str(run.get(f"{key}.file")))
    there = next(place for place in (file, *file.absolute().parents) if place.exists())
    fits = there.is_file() if there == file else there.is_dir()
    if not fits or not os.access(there, os.W_OK):
        yield (
            f"{key}.file={file}: no file can be written there ({there} is in the way); give one "
            f"that can, such as {key}.file=katib.json"
        )


def batch_size_finder(run: ComposedRun, key: str) -> Iterator[str]:
    """Why it cannot search with this strategy, or in this range."""
    if not run.one_process:
        yield (
            "callbacks=batch_size_finder: a rank that runs out of memory leaves the others "
            f"waiting, so it is not for strategy={run.strategy}; find the size of a device with "
            "strategy=single, and multiply"
        )
    first, largest = run.get(f"{key}.first", 1), run.get(f"{key}.largest", 1)
    if first > largest:
        yield f"{key}.first={first}: must be at most largest={largest}, such as {key}.first=1"


def displays(run: ComposedRun, key: str) -> Iterator[str]:
    """Why there is nothing that they could write to."""
    name, writer = key.rpartition(".")[2], run.get(f"{key}.writer")
    if not run.get(f"logger.{writer}"):
        yield (
            f"callbacks={name}: writes through logger.{writer}, which was taken away; "
            f"add +logger={writer}, or use '~{key}'"
        )


def checkpoints(run: ComposedRun, key: str) -> Iterator[str]:
    """Why these files cannot be written."""
    name = str(run.get(f"{key}.filename")).removesuffix(".ckpt")
    if name == "last" and run.get(f"{key}.save_last"):
        yield (
            f"{key}.filename=last: is the name of the newest state (save_last), which the best "
            f"weights would overwrite; use {key}.filename=best"
        )
    kept = run.get(f"{key}.save_top_k", 1)
    if kept not in (0, 1) and name not in ("best", "None") and "{" not in name:
        yield (
            f"{key}.save_top_k={kept}: files need names that differ, and {key}.filename={name} is "
            f"one name; use '{key}.filename=\"{name}-{{epoch}}-{{step}}\"', or {key}.filename=best"
        )
    folder = str(run.get(f"{key}.dirpath") or "")
    if folder and "://" not in folder and (reason := cannot_be_made(Path(folder))):
        yield (
            f"{key}.dirpath={folder}: cannot be made: {reason}; leave it out, or name a folder "
            f"that you may write to, such as {key}.dirpath=checkpoints"
        )
    if "://" in folder:
        yield (
            f"{key}.dirpath={folder}: checkpoints are written to a local disk, or to one that is "
            f"mounted; leave it out, or use {key}.dirpath=FOLDER"
        )


def wandb(run: ComposedRun, key: str) -> Iterator[str]:
    """Why it cannot be reached."""
    if run.get(f"{key}.offline") is False and not _has_wandb_key():
        yield (
            f"{key}.offline=false: there is no key for Weights & Biases; run `wandb login` or "
            f"set WANDB_API_KEY, or use {key}.offline=true"
        )


def _has_wandb_key() -> bool:
    """Whether it answers without asking for a key."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc.netrc().authenticators("api.wandb.ai") is not None
    except (OSError, netrc.NetrcParseError):
        return False


def comet(run: ComposedRun, key: str) -> Iterator[str]:
    """Why it cannot be used, or reached."""
    asked = f"logger={key.partition('.')[2]}"
    if refusal := missing(asked, ("comet_ml",), "comet", "logger=tensorboard"):
        yield refusal
    elif run.get(f"{key}.online") and not _has_comet_key():
        yield (
            f"{key}.online=true: there is no key for Comet; run `comet login` or set "
            f"COMET_API_KEY, or use {key}.online=false"
        )


def _has_comet_key() -> bool:
    """Whether one is where Comet looks for it."""
    if os.environ.get("COMET_API_KEY"):
        return True
    files = [Path(os.environ.get("COMET_CONFIG", ""))]
    files += [folder / ".comet.config" for folder in (Path.home(), Path.cwd())]
    return any(file.is_file() and "api_key" in file.read_text(errors="replace") for file in files)


def mlflow(run: ComposedRun, key: str) -> Iterator[str]:
    """Why it cannot be used."""
    asked = f"logger={key.partition('.')[2]}"
    if refusal := missing(
        asked, ("mlflow", "sqlalchemy", "alembic"), "mlflow", "logger=tensorboard"
    ):
        yield refusal


def optimizer(run: ComposedRun, key: str) -> Iterator[str]:
    """Why it cannot be captured in a graph."""
    if run.get(f"{key}.capturable") is True and run.accelerator != "cuda":
        yield (
            f"{key}.capturable=true: is for graphs on a GPU, and this run is on "
            f"{run.accelerator}; use {key}.capturable=false"
        )
