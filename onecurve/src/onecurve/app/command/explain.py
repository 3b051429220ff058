"""One line for an error of Hydra's, with the nearest group, choice or key that exists."""

import os
import re
import shlex
from functools import cached_property
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ...spelling import nearest, no_such_key
from ..config.commands import Train
from ..run.interpolation import dotted
from ..run.record import override, parsed
from .resolvers import command_of
from .resume import key_of


def choices(group: str) -> list[str]:
    """The choices of a group, from all config sources; none for a key, which may have a dot.

    Hydra's own loader copies its whole state first, which is slower than reading a file.
    """
    if "." in group:
        return []
    options: list[str] = _loader().repository.get_group_options(group, ObjectType.CONFIG)
    return options


class Chosen:
    """Keys of the chosen files, and their defaults, before single keys are overridden."""

    def __init__(self, config_name: str, overrides: list[str]) -> None:
        self.config_name = config_name
        self.overrides = overrides

    @cached_property
    def lists(self) -> dict[str, list[str]]:
        """The groups of which several files may be chosen, with those that the defaults name."""
        primary = _loader().repository.load_config(self.config_name)
        return {
            str(default.group): default.value
            for default in primary.defaults_list or ()
            if hasattr(default, "group")
            if isinstance(default.value, list)
        }

    def words_about(self, group: str) -> list[str]:
        """The overrides of a group, such as `callbacks=a` and `+callbacks=b`."""
        return [word for word in self.overrides if key_of(word) == group]

    @cached_property
    def keys(self) -> list[str]:
        """Every group, and every dotted key."""
        groups = _loader().repository.get_group_options("", ObjectType.GROUP)
        return list(dict.fromkeys([*(name for name in groups if name != "hydra"), *self.values]))

    @cached_property
    def values(self) -> dict[str, Any]:
        """The default of every dotted key."""
        try:
            return self._composed([each for each in self.overrides if choices(key_of(each))])
        except HydraException:
            # A sweep chooses several, and some files compose only with what was overridden.
            return self._composed([])

    def choices_with(self, key: str) -> list[str]:
        """Other choices of the group that have this key, those with the fewest keys first."""
        group, _, name = key.partition(".")
        name = name.partition(".")[0]
        is_removed = {f"~{group}", f"~{key}"} & {*self.overrides}
        if not name or is_removed or f"{group}.{name}" in self.values:
            return []
        sizes = {}
        for choice in choices(group):
            loaded = _loader().repository.load_config(f"{group}/{choice}")
            if loaded is not None and name in loaded.config:
                sizes[choice] = len(list(loaded.config))
        return sorted(sizes, key=lambda choice: sizes[choice])

    def _composed(self, overrides: list[str]) -> dict[str, Any]:
        config = _loader().load_configuration(self.config_name, overrides, RunMode.RUN)
        OmegaConf.set_struct(config, False)
        config.pop("hydra")
        try:
            return dict(dotted(OmegaConf.to_container(config, resolve=True)))
        except OmegaConfBaseException:  # a key that may still be overridden
            return dict(dotted(OmegaConf.to_container(config)))


def _loader() -> Any:
    return GlobalHydra.instance().config_loader()


def explain(error: BaseException, config_name: str, overrides: list[str]) -> str:
    """One line for an error of Hydra's, which has the configurations."""
    text = " ".join(str(error).split())
    if line := _unreadable(text, config_name, overrides):
        return line
    chosen = Chosen(config_name, overrides)
    if line := merged_by_nobody(chosen):
        return line
    for said, explained in EXPLAINED.items():
        if found := re.search(said, text):
            return explained(next(filter(None, found.groups())), chosen) or text
    return text


def _unreadable(text: str, config_name: str, overrides: list[str]) -> str | None:
    """A line for a word that Hydra's grammar rejects."""
    if "missing EQUAL" not in text and "override_grammar" not in text:
        return None
    word = next((word for word in overrides if parsed(word) is None), None)
    if word is None:
        return None
    start = overrides.index(word)
    key, equals, value = word.partition("=")
    if os.path.exists(word):
        key = "resume" if config_name == "train" else "checkpoint"
        return f"{word}: has no key, such as {shlex.quote(override(key, word))}"
    if not equals:
        # `key = value` is three words.
        after = overrides[start + 1 : start + 3]
        value = next((each for each in after if "=" not in each), "VALUE")
        return f"{word}: has no value, such as {word}={value}"
    if parsed(f"{key}=1") is None:
        return f"{word}: {key or 'nothing'} is not a valid key for Hydra; write KEY=VALUE"
    for end in range(start + 2, len(overrides) + 1):
        if parsed(whole := " ".join(overrides[start:end])) is not None:
            return f"{word}: ends at a space; quote it for the shell: {shlex.quote(whole)}"
    quoted = shlex.quote(override(key, value))
    return f"{word}: cannot be parsed by Hydra; if it is text, quote it twice: {quoted}"


def chosen_once(group: str, chosen: Chosen) -> str | None:
    """A line for words about one group, such as `~callbacks=a`, which Hydra does not merge."""
    typed = chosen.words_about(group)
    if not typed or (typed[-1].startswith("~") and group not in chosen.lists):
        return None
    meant = f"{group}={typed[-1].partition('=')[2]}"
    if group in chosen.lists:
        names = chosen.lists[group]
        for word in typed:
            entries = [name for name in word.partition("=")[2].strip("[]").split(",") if name]
            if word.startswith("~"):
                names = [name for name in names if name not in (entries or names)]
            else:
                names = [*names, *entries] if word.startswith("+") else entries
        meant = f"{group}=[{','.join(dict.fromkeys(names))}]"
    return f"{typed[-1]}: {group} is chosen by one word; use {shlex.quote(meant)}"


def merged_by_nobody(chosen: Chosen) -> str | None:
    """The line for `callbacks=[a] +callbacks=b`, of which Hydra takes one without an error."""
    for group in chosen.lists:
        typed = chosen.words_about(group)
        if len(typed) > 1 and any(word.startswith("+") for word in typed):
            return chosen_once(group, chosen)
    return None


def _unknown_choice(path: str, chosen: Chosen) -> str | None:
    group, _, choice = path.rpartition("/")
    if group == "hydra/launcher":
        extra = "joblib" if choice == "joblib" else "submitit"
        return (
            f"sweep/launcher: {choice} is not installed; use sweep/launcher=serial, or type "
            f"`uv pip install -e '.[{extra}]'`"
        )
    if options := choices(group):
        right = nearest(choice, options) or options[0]
        # Other entries of a list stay.
        wrong = rf"(?<![\w.-]){re.escape(choice)}(?![\w.-])" if choice else "$"
        words = chosen.words_about(group)
        typed = next((word for word in words if re.search(wrong, word)), f"{group}={choice}")
        example = shlex.quote(re.sub(wrong, right, typed))
        return f"{group}={choice}: must be one of {', '.join(options)}, such as {example}"
    above, _, inside = group.rpartition("/")
    if choices(inside):
        return (
            f"{group}/{choice}: there is no such file; write `override /{inside}: {choice}` into "
            f"the list of defaults of the file in {above}"
        )
    return None


def _unknown_key(key: str, chosen: Chosen) -> str:
    group, _, place = key.partition("@")
    if place:
        return (
            f"{group}: is changed below {place.rpartition('.')[0]}, where there is none; begin the "
            "file that changes it with the line `# @package _global_`"
        )
    if having := chosen.choices_with(key):
        group = key.partition(".")[0]
        return f"{key}: this key exists only with {' or '.join(having)}; add {group}={having[0]}"
    if key in chosen.keys or key in Train.model_fields:
        command = command_of(chosen.config_name)
        return f"{key}: is not in the configuration of `{command}`; leave it out"
    line = no_such_key(key, chosen.keys)
    above = key.rpartition(".")[0]
    node = chosen.values.get(above)
    target = str(node.get("_target_", "")) if isinstance(node, dict) else ""
    # The library's own, and the project's, say what they take; an optimizer takes more.
    if target and not target.startswith("onecurve.") and f"did you mean {above}." not in line:
        line = f"{line} or," if "did you mean" in line else f"{key}: there is no such key;"
        line = f"{line} if it is an argument of {target}, begin with a plus: +{key}=..."
    return line


def _not_a_choice(_: str, chosen: Chosen) -> str | None:
    for word in chosen.overrides:
        group, typed = key_of(word), parsed(word)
        if typed and isinstance(typed.value(), bool | int | float | None) and choices(group):
            options = choices(group)
            example = f"'{group}=[]'" if group in chosen.lists else f"{group}={options[0]}"
            return f"{word}: must be one of {', '.join(options)}, such as {example}"
    return None


def _several_values(word: str, _: Chosen) -> str:
    return f"{word}: several values are a sweep; add -m, or give one value"


def no_mapping(file: str, _: Chosen | None = None) -> str:
    """The line for a file of a group, such as "experiment/mine", that holds a list."""
    return f"{file}.yaml: is a list; write a line `KEY: VALUE` for each key that it changes"


def _tab(place: str, _: Chosen) -> str:
    return place.replace('"', "") + ": begins with a tab; indent the lines of YAML by spaces"


# What Hydra says, with the name that it says it of, and the line for it.
EXPLAINED = {
    r"Could not (?:load|find) '([\w./-]+/[^'/]*)'": _unknown_choice,
    r"Multiple values for ([\w/@.-]+)\. To|([\w/@.-]+) appears more than once": chosen_once,
    r"Could not delete '([\w/]+)|deletion value must be .*key_or_group='([\w/]+)'": chosen_once,
    r"Could not override '([\w./@-]+)'|'([\w./@-]+)' does not exist": _unknown_key,
    r"(?:Ambiguous value for argument|Sweep parameters) '(.+?)'": _several_values,
    r"group override must be a string or a list. Got (\w+)": _not_a_choice,
    r"In '([\w./-]+)': .* Cannot merge DictConfig with ListConfig full_key: object": no_mapping,
    r"character '\\t' .* in \"(.+, line \d+)": _tab,
}


def replaced_by_one(chosen: Chosen) -> str | None:
    """The line about `callbacks=swa`, which leaves nothing of the defaults."""
    for word in chosen.overrides:
        group, _, choice = word.partition("=")
        names = chosen.lists.get(group, [choice])
        if choice not in (*names, "none") and choice in choices(group):
            return f"{word}: replaces {', '.join(names)}; +{word} adds to them"
    return None
