"""The arguments of `callbacks=checkpoint`, described once; without torch."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ..arguments import Arguments
from ..config_model import Count, Run
from . import remote
from .file import cannot_be_made

TO_WRITE = "s3://BUCKET/PATH"


class BestAndLastOptions(Arguments):
    """Keeps the best weights by a metric, and the newest state to resume from."""

    # In the order of ModelCheckpoint.
    dirpath: str | None = Field(
        default=None, description="The folder, or s3://bucket/path; null for the run directory."
    )
    filename: str | None = Field(
        default=None, description="Name of the best; may have {epoch} in it."
    )
    monitor: str | None = Field(default=None, description="The metric that decides which are best.")
    verbose: bool = Field(default=False, description="Log what is saved.")
    save_last: bool | Literal["link"] | None = Field(
        default=None, description="Keep the newest: last.ckpt."
    )
    save_top_k: int = Field(default=1, description="How many of the best to keep; -1 for all.")
    save_on_exception: bool = Field(default=False, description="Save when the run fails.")
    save_weights_only: bool = Field(default=False, description="Leave out what a resume needs.")
    mode: Literal["min", "max"] = Field(
        default="min", description="Whether a smaller (min) or a larger (max) value is better."
    )
    auto_insert_metric_name: bool = Field(
        default=True, description="Put metric names into file names."
    )
    every_n_train_steps: int | None = Field(
        default=None, description="Save every n training steps."
    )
    train_time_interval: Any = Field(
        default=None, description="Save whenever this much time has passed."
    )
    every_n_epochs: int | None = Field(default=None, description="Save every n epochs.")
    save_on_train_epoch_end: bool | None = Field(
        default=None, description="Save at the end of training epochs instead of after validations."
    )
    enable_version_counter: bool = Field(
        default=True, description="Add a number to a name that exists."
    )
    last_every_n_steps: Count | None = Field(
        default=None, description="Also save last.ckpt every n steps."
    )
    last_every_minutes: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Also save last.ckpt every n minutes, not only at validations."
    )

    def refusals(self, run: Run, key: str) -> Iterator[str]:
        if str(self.filename).removesuffix(".ckpt") == "last" and self.save_last:
            yield (
                f"{key}.filename=last: the newest state (save_last) has this name, and the best "
                f"weights would overwrite it; use {key}.filename=best"
            )
        folder = self.dirpath or ""
        # The run directory, not known yet, is checked when it is created.
        is_own = folder and not folder.startswith(f"{run.get('paths.run')}/")
        if is_own and "://" not in folder and (reason := cannot_be_made(Path(folder))):
            yield (
                f"{key}.dirpath={folder}: cannot be created: {reason}; leave it out, or name a "
                f"folder that you may write to, such as {key}.dirpath=checkpoints"
            )
        if folder.startswith("file://"):
            yield (
                f"{key}.dirpath={folder}: a folder needs no scheme; use "
                f"{key}.dirpath=/{folder.partition('://')[2].lstrip('/')}"
            )
        elif remote.is_address(folder):
            if reason := remote.refusal(folder):
                yield f"{key}.dirpath={folder}: {reason.replace(remote.EXAMPLE, TO_WRITE)}"
            if run.get("checkpoint.format") == "sharded":
                yield (
                    f"{key}.dirpath={folder}: shards are written to a folder that all ranks see; "
                    "use checkpoint.format=file, or leave it out"
                )
