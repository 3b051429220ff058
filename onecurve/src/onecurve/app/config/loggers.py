"""Models of the entries of `logger`, one for each class of loggers."""

import netrc
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ...config_model import Config, Words, as_override
from ...errors import missing_packages
from ..composed_run import ComposedRun

# A folder below `save_dir`.
Subfolder = Annotated[str, Field(pattern="^([^/].*)?$"), Words("a folder without / before it", "a")]


class _Logger(Config, extra="allow"):
    save_dir: str = Field(description="Folder of its files, usually the run directory.")


class CSV(_Logger, extra="allow"):
    """Writes metrics.csv: every logged value, by epoch and step."""

    name: Subfolder | None = Field(
        None, description="Subfolder for the experiment; empty for none."
    )
    version: int | Subfolder | None = Field(
        None, description="Subfolder for the run; empty for none."
    )
    flush_logs_every_n_steps: int = Field(100, ge=1, description="Rows to buffer.")


class TensorBoard(_Logger, extra="allow"):
    """Writes for TensorBoard: `tensorboard --logdir runs`."""

    name: Subfolder | None = Field(
        None, description="Subfolder for the experiment; empty for none."
    )
    version: int | Subfolder | None = Field(
        None, description="Subfolder for the run; empty for none."
    )
    seconds_between_writes: float = Field(10, ge=0, description="How long to buffer values.")
    max_queue: int = Field(10, ge=1, description="How many values to buffer at most.")
    hparams: bool = Field(True, description="Show overrides beside the last metrics.")
    default_hp_metric: bool = Field(True, description="Show hp_metric beside hyperparameters.")


class MLFlowLogger(_Logger, extra="allow"):
    """Writes to MLflow."""

    experiment_name: str = Field("", description="The name under which runs are grouped.")
    artifact_location: str | None = Field(None, description="Where to store files.")
    log_model: Literal["all"] | bool = Field(False, description="Also send checkpoints.")
    tracking_uri: str = Field(description="Where MLflow stores runs: a database, or a server.")
    run_id: str | None = Field(None, description="Null for a new one.")

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        needed = ("mlflow", "sqlalchemy", "alembic")
        if refusal := missing_packages(
            f"logger={key.partition('.')[2]}", needed, "mlflow", "logger=tensorboard"
        ):
            yield refusal


class WandbLogger(_Logger, extra="allow"):
    """Writes to Weights & Biases."""

    id: str | None = Field(None, description="Null for the run directory's, or a new one.")
    project: str | None = Field(None, description="The name under which runs are grouped.")
    offline: bool = Field(False, description="Keep runs on this machine; `wandb sync` sends them.")
    log_model: Literal["all"] | bool = Field(False, description="Also send checkpoints.")

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        for name, reserved, most in (("project", "/\\#?%:", 128), ("id", "/:;,#?'", None)):
            value = str(getattr(self, name) or "")
            if set(reserved).intersection(value) or value[:most] != value:
                near = re.sub(r"[^\w.-]+", "-", value)[:most]
                # A project's own key `project` is where the logger's comes from.
                typed = name if run.get(name) == value else f"{key}.{name}"
                yield (
                    f"{as_override(typed, value)}: Weights & Biases takes none of {reserved} in it"
                    f"{f', and at most {most} characters' if most else ''}; use "
                    f"{as_override(typed, near)}"
                )
        if run.get(f"{key}.offline") is False and not _has_wandb_key():
            yield (
                f"{key}.offline=false: there is no key for Weights & Biases; run `wandb login` or "
                f"set WANDB_API_KEY, or use {key}.offline=true"
            )


class CometLogger(_Logger, extra="allow"):
    """Writes to Comet."""

    project: str | None = Field(None, description="The name under which runs are grouped.")
    workspace: str | None = Field(None, description="Null for the default of the account.")
    log_code: bool = Field(False, description="Send the source files.")
    log_git_metadata: bool = Field(True, description="Send the commit.")
    log_git_patch: bool = Field(False, description="Send uncommitted changes.")
    log_env_details: bool = Field(False, description="Send details of the machine.")
    parse_args: bool = Field(False, description="Send the command line.")
    auto_output_logging: bool | str = Field(False, description="Send the console output.")
    display_summary_level: int = Field(0, ge=0, description="How much to print at the end.")
    online: bool = Field(False, description="Send to Comet's server at once; needs a key.")
    experiment_key: str | None = Field(None, description="Null for a new one.")

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        if refusal := missing_packages(
            f"logger={key.partition('.')[2]}", ("comet_ml",), "comet", "logger=tensorboard"
        ):
            yield refusal
        elif self.online and not _has_comet_key():
            yield (
                f"{key}.online=true: there is no key for Comet; run `comet login` or set "
                f"COMET_API_KEY, or use {key}.online=false"
            )


def _has_wandb_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc.netrc().authenticators("api.wandb.ai") is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _has_comet_key() -> bool:
    if os.environ.get("COMET_API_KEY"):
        return True
    files = [Path(os.environ.get("COMET_CONFIG", ""))]
    files += [folder / ".comet.config" for folder in (Path.home(), Path.cwd())]
    return any(file.is_file() and "api_key" in file.read_text(errors="replace") for file in files)
