"""Rich's console for what others have named: metrics, layers, paths, and the words of errors."""

from rich.console import Console


def plain_console(width: int | None = None) -> Console:
    """A console that prints texts as they are, those in the cells of tables included.

    Rich would read ``[cat]`` in them as a style, and ``:cat:`` as a picture.

    Args:
        width: Columns; None for those of the terminal.
    """
    return Console(width=width, markup=False, emoji=False)
