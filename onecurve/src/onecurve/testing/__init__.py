"""For a project's own tests: fixtures that run its scripts and read their results."""

from typing import Any


def assert_parity(*arguments: Any, **named: Any) -> None:
    """Assert that a strategy trains like a plain Trainer; the arguments are `onecurve.parity`'s.

    For example ``assert_parity(Task, loaders, strategy=onecurve.FSDP(), accelerator="cpu")``; ranks
    find `Task` and `loaders` by their names in the file of the test.

    Raises:
        AssertionError: With the table, if something differs.
    """
    from ..parity.runs import parity

    result = parity(*arguments, **named)
    assert result.equal, result.table()
