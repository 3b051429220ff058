"""Command lines as nobody means them, drawn from the real configuration and a seed."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from omegaconf import OmegaConf

from onecurve.app.command.resolvers import register_resolvers
from onecurve.app.run.interpolation import dotted

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
    "${missing}",
    "${oc.env:NOT_SET}",
    "${",
    "'open",
    '"open',
    "[",
    "{",
    "]",
    "a,b",
    "${.a.b}",
)
# Without these there is no run, and a run cannot begin.
NEEDED = ("task", "data", "model", "trainer", "strategy", "paths", "launch", "seed")
# They start other processes, or look for other machines; and what a network makes of an input that
# is not its own fails in the network's lines, with the traceback that its author needs.
NOT_DRAWN = (
    *("hydra", "sweep", "wandb", "trainer.num_nodes", "num_workers"),
    *("model.image_size", "model.in_channels", "num_classes"),
)
Line = tuple[list[str], bool]
"""What is typed, and whether it is wrong by the way in which it was made; else nobody knows."""


def draws(configs: Path, usual: tuple[str, ...], seed: int, number: int) -> Iterator[Line]:
    """Lines for `train.py`, each with one to three mutations, beside what is usually typed.

    The same lines come of the same seed.
    """
    register_resolvers()
    with initialize_config_dir(str(configs.resolve()), version_base="1.3"):
        config: Any = OmegaConf.to_container(compose("train", list(usual)))
        loader = GlobalHydra.instance().config_loader()
        names = [name for name in sorted(loader.list_groups("")) if _is_drawn(name)]
        found = {name: loader.get_group_options(name, ObjectType.CONFIG) for name in names}
    values = {key: value for key, value in dotted(config) if _is_drawn(key)}
    groups = {name: [each for each in found[name] if _is_drawn(each)] for name in names}
    groups = {name: choices for name, choices in groups.items() if choices}
    generator = random.Random(seed)
    for _ in range(number):
        drawn = [
            _mutation(generator, values, groups) for _ in range(generator.choice((1, 1, 1, 2, 3)))
        ]
        words = [word for typed, _ in drawn for word in typed]
        # Two that contradict each other: what comes last counts, and may be right.
        keys = [word.lstrip("+~").partition("=")[0].partition(".")[0] for word in words]
        yield words, any(wrong for _, wrong in drawn) and len(set(keys)) == len(keys)


def _is_drawn(name: str) -> bool:
    return not any(part in name for part in NOT_DRAWN)


def _mutation(
    generator: random.Random, values: dict[str, Any], groups: dict[str, list[str]]
) -> Line:
    pick = generator.choice
    key, group = pick(list(values)), pick(list(groups))
    one, two, value = pick(groups[group]), pick(groups[group]), pick(NO_NUMBER + OTHERS)
    usual, at = values[key], generator.randrange(len(key))
    is_number = isinstance(usual, int | float)
    meant = not usual if isinstance(usual, bool) else pick((usual, usual * 2)) if is_number else one
    misspelt = pick((key[:at] + key[at + 1 :], f"{key[:at]}x{key[at:]}", f"{key}.x", key.upper()))
    is_known = misspelt in values or misspelt in groups or misspelt.startswith("paths.")
    gone = pick([*values, *groups, *NEEDED])
    added = pick((key, f"{key}.x", f"{key.partition('.')[0]}.new", "new", ""))
    no_value = pick(([key], [key, "1"], [f"={key}"], [f"{key}:1"], [f"-{key}"]))
    choice: Line = pick(
        (
            ([f"{group}={one}"], False),
            ([f"{group}={one}x"], True),
            ([f"{group}=null"], True),
            ([f"{group}=[{one},{two}]"], group not in ("callbacks", "logger")),
            ([f"{group}={{a:1}}"], False),  # is laid on top of the choice that is made already
            ([f"+{group}={one}"], False),
        )
    )
    return pick(
        (
            *(3 * (([f"{key}={value}"], is_number and value in NO_NUMBER),)),
            ([f"{key}={pick(BROKEN)}"], True),
            ([f"{key}={str(meant).lower()}" if is_number else "seed=7"], False),
            ([f"{misspelt}=1"], not is_known),
            ([f"{pick(('+', '++'))}{added}={value}"], False),
            ([f"~{gone}"], gone in NEEDED),
            choice,
            (no_value, True),
        )
    )
