"""Limits that an argument's type tells: read from the source, before anything heavy is imported.

A class, or a function, says in its signature what it takes::

    def __init__(
        self,
        decay: Annotated[float, Number(least=0, most=1)] = 0.999,
        annealing: Literal["cosine", "linear"] = "cosine",
        every_n_steps: Annotated[int, Number(least=1)] | None = None,
    ) -> None: ...

A value outside of it is refused before a run makes its directory. `onecurve.command.signatures`
reads the annotations without importing the file, so they may name what is defined in this module,
what `typing` has, and other such types; one that names anything else is passed over.
"""

import re
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path


@dataclass(frozen=True)
class Number:
    """Which numbers: ``Annotated[int, Number(least=1)]`` are the whole ones from 1.

    Args:
        least: The smallest that is allowed.
        most: The largest that is allowed.
        above: All that are allowed are larger.
        below: All that are allowed are smaller.
    """

    least: float = -inf
    most: float = inf
    above: float = -inf
    below: float = inf

    def holds(self, value: float) -> bool:
        """Whether a number is one of them."""
        return self.least <= value <= self.most and self.above < value < self.below

    def words(self) -> str:
        """The bounds as a person would say them, such as "from 1 to 10"."""
        bounds = {"above": self.above, "from": self.least, "to": self.most, "and below": self.below}
        known = [f"{word} {bound:.15g}" for word, bound in bounds.items() if isfinite(bound)]
        return " ".join(known).removeprefix("and ")

    def example(self, whole: bool) -> float:
        """A number that is one of them."""
        middle = (self.above + min(self.most, self.below)) / 2
        candidates = (self.least, self.above + 1, middle, self.most, self.below - 1, 0)
        return next(
            number
            for number in candidates
            if isfinite(number) and self.holds(number) and not (whole and number % 1)
        )


@dataclass(frozen=True)
class Pattern:
    r"""Which texts: ``Annotated[str, Pattern(r"\d+:\d\d", "minutes:seconds", "1:30")]``.

    Args:
        expression: A regular expression that the whole text has to match.
        words: What such a text is.
        example: One.
    """

    expression: str
    words: str
    example: str

    def holds(self, value: str) -> bool:
        """Whether a text is one of them."""
        return re.fullmatch(self.expression, value) is not None


@dataclass(frozen=True)
class Existing:
    """A file or folder that has to be there: ``Annotated[str, Existing("a folder of images")]``.

    Args:
        wanted: What to give, and an example.
    """

    wanted: str

    def refusal(self, value: str) -> str | None:
        """What is wrong with a path; None if nothing is."""
        path = Path(value).expanduser()
        if not path.exists():
            return f"there is no such file; give {self.wanted}"
        # A device or a pipe may never end.
        if not path.is_file() and not path.is_dir():
            return f"is neither a file nor a folder; give {self.wanted}"
        return None


@dataclass(frozen=True)
class Callee:
    """The dotted name of a class or function that is given all arguments that have no name here.

    ``Annotated[str, Callee()]``, beside ``**options``: an editor knows those of each that a
    configuration names.
    """
