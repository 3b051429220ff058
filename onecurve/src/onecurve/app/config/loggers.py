"""Models of the entries of `logger`, one for each class of loggers.

Further keys are passed to the class, which validates them when it is built.
"""

import netrc
import os
from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import Field

from ...config_model import Config, Words
from ...errors import missing_packages
from ..composed_run import ComposedRun

# What Weights & Biases takes.
RunName = Annotated[str, Field(pattern="^[^/:;,#?']*$"), Words("text without /:;,#?'", "run-1")]
Project = Annotated[
    str,
    Field(pattern=r"^[^/\\#?%:]{0,128}$"),
    Words("text of at most 128 characters, none of /\\#?%:", "my-project"),
]


class _Logger(Config, extra="allow"):
    save_dir: str = Field(description="Folder of its files, usually the run directory.")
    # What it needs that may not be installed, and the extra that installs it.
    packages: ClassVar[tuple[str, ...]] = ()
    extra: ClassVar[str] = ""

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        logger = f"logger={key.partition('.')[2]}"
        if line := missing_packages(logger, self.packages, self.extra, "logger=tensorboard"):
            yield line


class _Files(_Logger, extra="allow"):
    name: str | None = Field(None, description="Subfolder for the experiment; empty for none.")
    version: int | str | None = Field(None, description="Subfolder for the run; empty for none.")


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
    packages = ("mlflow", "sqlalchemy", "alembic")
    extra = "mlflow"


class WandbLogger(_Logger, extra="allow"):
    """Writes to Weights & Biases."""

    id: RunName | None = Field(None, description="Null for the run directory's, or a new one.")
    project: Project | None = Field(None, description="The name under which runs are grouped.")
    offline: bool = Field(False, description="Keep runs on this machine; `wandb sync` sends them.")

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        if run.get(f"{key}.offline") is False and not _has_key():
            yield (
                f"{key}.offline=false: there is no key for Weights & Biases; run `wandb login` or "
                f"set WANDB_API_KEY, or use {key}.offline=true"
            )


class CometLogger(_Logger, extra="allow"):
    """Writes to Comet."""

    project: str | None = Field(None, description="The name under which runs are grouped.")
    online: bool = Field(False, description="Send to Comet's server at once; needs a key.")
    packages = ("comet_ml",)
    extra = "comet"


def _has_key() -> bool:
    """Whether the key of Weights & Biases is in the environment, or where its login leaves it."""
    try:
        login = netrc.netrc().authenticators("api.wandb.ai")
    except (OSError, netrc.NetrcParseError):
        login = None
    return bool(os.environ.get("WANDB_API_KEY") or login)
