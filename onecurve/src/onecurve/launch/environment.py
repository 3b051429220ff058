"""Variables of this process's environment that a run sets, and that the next must not find."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

# What Lightning leaves in the environment of the process that trains: of the seed, and of the one
# rank of a strategy that could have several.
LIGHTNING_VARIABLES = (
    "PL_GLOBAL_SEED",
    "PL_SEED_WORKERS",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NODE_RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
)


@contextmanager
def unchanged_environment(
    names: Sequence[str], meanwhile: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Variables are afterwards as they were before, for the next job of a sweep.

    Args:
        names: Which.
        meanwhile: What some of them are until then.
    """
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(meanwhile or {})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
