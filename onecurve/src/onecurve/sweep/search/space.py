"""What a search may try: Hydra's sweep syntax as Optuna's distributions."""

from typing import Any

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from ...errors import UserError


def read_space(overrides: list[Override]) -> tuple[dict[str, BaseDistribution], list[str]]:
    """Split a command line into what is searched and what is fixed.

    ``a,b,c`` is a choice, ``range(1,9)`` or ``range(0,1,0.1)`` an evenly spaced number, and
    ``interval(1,8)`` or ``interval(0.1,1)`` a number between; ``tag(log, ...)`` of a range or an
    interval searches its logarithm.

    Returns:
        The distribution of each key that is searched, and the other overrides as they were typed.
    """
    space = {
        override.get_key_element(): _distribution(override)
        for override in overrides
        if override.is_sweep_override()
    }
    fixed = [override.input_line or "" for override in overrides]
    return space, [word for word in fixed if word.partition("=")[0] not in space]


def _distribution(override: Override) -> BaseDistribution:
    sweep = override.value()
    try:
        if isinstance(sweep, IntervalSweep):
            return _number(sweep.start, sweep.end, None, "log" in sweep.tags)
        if isinstance(sweep, RangeSweep) and not sweep.shuffle:
            values = list(override.sweep_iterator())
            return _number(values[0], values[-1], sweep.step, "log" in sweep.tags)
        return CategoricalDistribution(list(override.sweep_string_iterator()))
    except (ValueError, IndexError) as error:
        raise UserError(
            f"{override.input_line}: is no space to search ({error}); such as "
            f"{override.key_or_group}=interval(0.1,1)"
        ) from None


def _number(low: Any, high: Any, step: Any, log: bool) -> BaseDistribution:
    if all(isinstance(value, int) for value in (low, high, step or 1)):
        return IntDistribution(low, high, log=log, step=1 if log else step or 1)
    return FloatDistribution(float(low), float(high), log=log, step=None if log else step)


def grid_of(space: dict[str, BaseDistribution]) -> dict[str, list[Any]]:
    """All values of each key, for a sampler that goes through them.

    Raises:
        UserError: If a key has no end of values.
    """
    values: dict[str, list[Any]] = {}
    for key, distribution in space.items():
        if isinstance(distribution, CategoricalDistribution):
            values[key] = list(distribution.choices)
        elif isinstance(distribution, IntDistribution):
            values[key] = list(range(distribution.low, distribution.high + 1, distribution.step))
        elif isinstance(distribution, FloatDistribution) and distribution.step:
            count = round((distribution.high - distribution.low) / distribution.step) + 1
            values[key] = [distribution.low + n * distribution.step for n in range(count)]
        else:
            raise UserError(
                f"{key}: sweep/sampler=grid needs an end of values, not an interval; list some, "
                f"such as {key}=0.1,0.2, or use sweep/sampler=tpe"
            )
    return values
