"""For a project's own tests: its scripts as fixtures of pytest, and what their runs leave."""

from typing import Any


def assert_parity(*arguments: Any, **named: Any) -> None:
    """Assert that a strategy trains as a plain Trainer does; takes what `onecurve.parity` takes.

    ``assert_parity(Task, loaders, strategy=onecurve.FSDP(), accelerator="cpu")``, where ranks find
    `Task` and `loaders` by their names in the file of the test.

    Raises:
        AssertionError: With the table, if something differs.
    """
    from ..parity.runs import parity

    found = parity(*arguments, **named)
    assert found.equal, found.table()
