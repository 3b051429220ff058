"""Command lines as nobody means them, drawn from the real configuration and a seed."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from omegaconf import OmegaConf

from onecurve.app.command.resolvers import register_resolvers
from onecurve.app.run.interpolation import dotted

# A run of one step, whatever is drawn after it.
SHORT = (
    "model=mlp",
    "data.image_size=8",
    "data.batch_size=64",
    "callbacks=[checkpoint,lr_monitor]",
    "logger=csv",
    "trainer.accelerator=cpu",
    "trainer.max_epochs=1",
    "trainer.max_steps=1",
    "trainer.limit_val_batches=1",
    "trainer.limit_test_batches=1",
)
# Of no use to a number, and to true or false.
NO_NUMBER = ("nan", "abc", "''", "[]", "[1]", "{}", "{a:1}", "ä☃", "NaN", "[nan]", "a b", "-", "1_")
# What may be right somewhere.
OTHERS = (
    *("inf", "-inf", "-1", "0", "1", "2", "0.5", "1.5", "1e3", "-0.0", "99999999999999999999"),
    *("null", "true", "false", "[a,b]", "[0.5]", "[1,2]", "None", "auto", "x" * 300, "/etc/passwd"),
    *("/dev/null", "../here", "~", "${seed}", "/proc/nowhere", "[[1]]", "{b:{c:nan}}"),
)
# Wrong wherever they stand.
BROKEN = (
    *("${missing}", "${oc.env:NOT_SET}", "${", "'open", '"open', "[", "{", "]", "a,b", "${.a.b}"),
)
# Without these there is no run, and a run cannot begin.
NEEDED = ("task", "data", "model", "trainer", "strategy", "paths", "launch", "seed")
# They start other processes, or look for other machines; and what a network makes of an input that
# is not its own fails in the network's lines, with the traceback that its author needs.
NOT_DRAWN = (
    *("hydra", "sweep", "wandb", "trainer.num_nodes", "num_workers"),
    *("model.image_size", "model.in_channels", "num_classes"),
)


class Line(NamedTuple):
    """A command line, without the program."""

    words: list[str]
    wrong: bool
    """Whether it is so by the way in which it was made; otherwise it is not known."""


class Lines:
    """Draws command lines for `train.py`.

    Args:
        configs: The folder `configs` of a project.
        seed: The same lines come of the same seed.
    """

    def __init__(self, configs: Path, seed: int) -> None:
        self.random = random.Random(seed)
        register_resolvers()
        with initialize_config_dir(str(configs.resolve()), version_base="1.3"):
            config: Any = OmegaConf.to_container(compose("train", list(SHORT)))
            loader = GlobalHydra.instance().config_loader()
            names = [name for name in loader.list_groups("") if _is_drawn(name)]
            found = {name: loader.get_group_options(name, ObjectType.CONFIG) for name in names}
        self.values = {key: value for key, value in dotted(config) if _is_drawn(key)}
        self.groups = {name: list(filter(_is_drawn, found[name])) for name in sorted(found)}
        self.groups = {name: choices for name, choices in self.groups.items() if choices}

    def draw(self) -> Line:
        """A line with one to three mutations."""
        kinds = (
            *(self._value, self._value, self._value, self._broken_value, self._right),
            *(self._misspelt, self._prefixed, self._taken_away, self._choice, self._without_value),
        )
        words: list[str] = []
        wrong = False
        for _ in range(self.random.choice((1, 1, 1, 2, 3))):
            drawn = self.random.choice(kinds)()
            words += drawn.words
            wrong = wrong or drawn.wrong
        # Two that contradict each other: what comes last counts, and may be right.
        keys = [word.lstrip("+~").partition("=")[0].partition(".")[0] for word in words]
        return Line(words, wrong and len(set(keys)) == len(keys))

    def _key(self) -> str:
        return self.random.choice(list(self.values))

    def _value(self) -> Line:
        key = self._key()
        usual = self.values[key]
        value = self.random.choice(NO_NUMBER + OTHERS)
        is_number = isinstance(usual, int | float)
        return Line([f"{key}={value}"], is_number and value in NO_NUMBER)

    def _broken_value(self) -> Line:
        return Line([f"{self._key()}={self.random.choice(BROKEN)}"], wrong=True)

    def _right(self) -> Line:
        """What a person may mean."""
        key = self._key()
        usual = self.values[key]
        if isinstance(usual, bool):
            return Line([f"{key}={str(not usual).lower()}"], wrong=False)
        if isinstance(usual, int | float):
            return Line([f"{key}={self.random.choice((usual, usual * 2, usual / 2))}"], wrong=False)
        return Line([f"seed={self.random.randrange(100)}"], wrong=False)

    def _misspelt(self) -> Line:
        key = self._key()
        at = self.random.randrange(len(key))
        misspelt = self.random.choice(
            (key[:at] + key[at + 1 :], key[:at] + "x" + key[at:], key + ".x", key.upper())
        )
        known = misspelt in self.values or misspelt in self.groups
        is_open = any(misspelt.startswith(f"{name}.") for name in ("paths",))
        return Line([f"{misspelt}=1"], wrong=not (known or is_open))

    def _prefixed(self) -> Line:
        key, sign = self._key(), self.random.choice(("+", "++"))
        added = self.random.choice((key, f"{key}.x", f"{key.partition('.')[0]}.new", "new", ""))
        value = self.random.choice(NO_NUMBER + OTHERS)
        return Line([f"{sign}{added}={value}"], wrong=False)

    def _taken_away(self) -> Line:
        name = self.random.choice([*self.values, *self.groups, *NEEDED])
        return Line([f"~{name}"], wrong=name in NEEDED)

    def _choice(self) -> Line:
        group = self.random.choice(list(self.groups))
        choices = self.groups[group]
        several = group in ("callbacks", "logger")
        one, two = self.random.choice(choices), self.random.choice(choices)
        kind = self.random.choice(("right", "unknown", "null", "list", "mapping", "added"))
        if kind == "right":
            return Line([f"{group}={one}"], wrong=False)
        if kind == "list":
            return Line([f"{group}=[{one},{two}]"], wrong=not several)
        if kind == "added":
            return Line([f"+{group}={one}"], wrong=False)
        value = {"unknown": f"{one}x", "null": "null", "mapping": "{a:1}"}[kind]
        # A mapping is laid on top of the choice that is made already.
        return Line([f"{group}={value}"], wrong=kind != "mapping")

    def _without_value(self) -> Line:
        key = self._key()
        drawn = self.random.choice(([key], [key, "1"], [f"={key}"], [f"{key}:1"], [f"-{key}"]))
        return Line(list(drawn), wrong=True)


def _is_drawn(name: str) -> bool:
    return not any(part in name for part in NOT_DRAWN)


def draws(configs: Path, seed: int, number: int) -> Iterator[Line]:
    """As many lines."""
    lines = Lines(configs, seed)
    for _ in range(number):
        yield lines.draw()
