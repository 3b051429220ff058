"""What MLflow cannot do without."""

from collections.abc import Iterator

from ..composed_run import ComposedRun
from ..extras import missing

NEEDED = ("mlflow", "sqlalchemy", "alembic")


def refusals(run: ComposedRun, key: str) -> Iterator[str]:
    """Why it cannot be used."""
    asked = f"logger={key.partition('.')[2]}"
    if refusal := missing(asked, NEEDED, "mlflow", "logger=tensorboard"):
        yield refusal
