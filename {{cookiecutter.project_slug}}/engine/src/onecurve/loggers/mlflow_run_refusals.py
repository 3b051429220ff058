"""What MLflow cannot do without."""

from collections.abc import Iterator

from ..extras import missing
from ..plan import Plan

NEEDED = ("mlflow", "sqlalchemy", "alembic")


def refusals(plan: Plan, key: str) -> Iterator[str]:
    """Why it cannot be used."""
    asked = f"logger={key.partition('.')[2]}"
    if refusal := missing(asked, NEEDED, "mlflow", "logger=tensorboard"):
        yield refusal
