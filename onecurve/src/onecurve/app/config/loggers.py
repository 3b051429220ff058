"""Models of the entries of `logger`, one for each class of loggers.

Further keys are passed to the class, which validates them when it is built.
"""

import netrc
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ...config_model import Config, Words, as_override
from ...errors import missing_packages
from ..composed_run import ComposedRun

# A folder below `save_dir`.
Subfolder = Annotated[str, Field(pattern="^([^/].*)?$"), Words("a folder without / before it", "a")]


class _Logger(Config, extra="allow"):
    save_dir: str = Field(description="Folder of its files, usually the run directory.")


class _Files(_Logger, extra="allow"):
    name: Subfolder | None = Field(
        None, description="Subfolder for the experiment; empty for none."
    )
    version: int | Subfolder | None = Field(
        None, description="Subfolder for the run; empty for none."
    )


class CSV(_Files, extra="allow"):
    """Writes metrics.csv: every logged value, by epoch and step."""

    flush_logs_every_n_steps: int = Field(100, ge=1, description="Rows to buffer.")


class TensorBoard(_Files, extra="allow"):
    """Writes for TensorBoard: `tensorboard --logdir runs`."""

    seconds_between_writes: float = Field(10, ge=0, description="How long to buffer values.")
    hparams: bool = Field(True, description="Show overrides beside the last metrics.")


class MLFlowLogger(_Logger, extra="allow"):
    """Writes to MLflow."""

    experiment_name: str = Field("", description="The name under which runs are grouped.")
    tracking_uri: str = Field(description="Where MLflow stores runs: a database, or a server.")

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
        if run.get(f"{key}.offline") is False and not _has_key("WANDB_API_KEY"):
            yield (
                f"{key}.offline=false: there is no key for Weights & Biases; run `wandb login` or "
                f"set WANDB_API_KEY, or use {key}.offline=true"
            )


class CometLogger(_Logger, extra="allow"):
    """Writes to Comet."""

    project: str | None = Field(None, description="The name under which runs are grouped.")
    online: bool = Field(False, description="Send to Comet's server at once; needs a key.")

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        if refusal := missing_packages(
            f"logger={key.partition('.')[2]}", ("comet_ml",), "comet", "logger=tensorboard"
        ):
            yield refusal
        elif self.online and not _has_key("COMET_API_KEY"):
            yield (
                f"{key}.online=true: there is no key for Comet; run `comet login` or set "
                f"COMET_API_KEY, or use {key}.online=false"
            )


def _has_key(variable: str) -> bool:
    """Whether a service's key is in the environment, or where its login leaves it."""
    if os.environ.get(variable):
        return True
    if variable == "WANDB_API_KEY":
        try:
            return netrc.netrc().authenticators("api.wandb.ai") is not None
        except (OSError, netrc.NetrcParseError):
            return False
    files = [Path(os.environ.get("COMET_CONFIG", ""))]
    files += [folder / ".comet.config" for folder in (Path.home(), Path.cwd())]
    return any(file.is_file() and "api_key" in file.read_text(errors="replace") for file in files)
