"""A Rich console for texts that may contain markup: metrics, layers, paths, error messages."""

from rich.console import Console


def plain_console(width: int | None = None) -> Console:
    """A console that prints texts as they are, those in the cells of tables included.

    Rich would read ``[cat]`` in them as a style, and ``:cat:`` as an emoji.

    Args:
        width: Columns; None for those of the terminal.
    """
    return Console(width=width, markup=False, emoji=False)
