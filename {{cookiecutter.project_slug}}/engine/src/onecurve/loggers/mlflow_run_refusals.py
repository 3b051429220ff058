"""What MLflow cannot do without."""

from collections.abc import Iterator
from importlib.util import find_spec

from ..plan import Plan

NEEDED = ("mlflow", "sqlalchemy", "alembic")


def refusals(plan: Plan, key: str) -> Iterator[str]:
    """Why it cannot be used."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        yield (
            f"logger={key.partition('.')[2]}: needs {', '.join(missing)}; type "
            "`uv pip install -e '.[mlflow]'`, or use logger=tensorboard"
        )
