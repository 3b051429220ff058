"""One line for an error of Hydra's, with the nearest group, choice or key that exists."""

import os
import re
import shlex
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ...compat.of_hydra import hydra_options
from ...spelling import nearest, no_such_key
from ..run.interpolation import dotted
from ..run.record import override, parsed
from .resolvers import command_of


def choices(group: str) -> list[str]:
    """The choices of a group, from all config sources.

    Hydra's own loader copies its whole state first, which is slower than reading a file.
    """
    found: list[str] = _loader().repository.get_group_options(group, ObjectType.CONFIG)
    return found


class Chosen:
    """Keys of the chosen files, and their defaults, before single keys are overridden."""

    def __init__(self, config_name: str, overrides: list[str]) -> None:
        self.config_name = config_name
        self.overrides = overrides

    def default(self, key: str) -> Any:
        """The default of a key; None if it is null or missing."""
        return self.values.get(key)

    def is_null(self, key: str) -> bool:
        return key in self.values and self.values[key] is None

    @cached_property
    def keys(self) -> list[str]:
        """Every group, and every dotted key."""
        groups = _loader().repository.get_group_options("", ObjectType.GROUP)
        return list(dict.fromkeys([*(name for name in groups if name != "hydra"), *self.values]))

    @cached_property
    def values(self) -> dict[str, Any]:
        """The default of every dotted key."""
        words = {word: word.partition("=")[0].lstrip("+") for word in self.overrides}
        # No group has a dot in its name.
        chosen = [word for word, key in words.items() if "." not in key and choices(key)]
        try:
            return self._composed(chosen)
        except HydraException:
            # A sweep chooses several, and some files compose only with what was overridden.
            return self._composed([])

    def choices_with(self, key: str) -> list[str]:
        """Other choices of the group that have this key, those with the fewest keys first."""
        group, _, name = key.partition(".")
        name = name.partition(".")[0]
        if not name or f"{group}.{name}" in self.values:
            return []
        found = {}
        for choice in choices(group):
            loaded = _loader().repository.load_config(f"{group}/{choice}")
            if loaded is not None and name in loaded.config:
                found[choice] = len(list(loaded.config))
        return sorted(found, key=lambda choice: found[choice])

    def _composed(self, chosen: list[str]) -> dict[str, Any]:
        config = _loader().load_configuration(self.config_name, chosen, RunMode.RUN)
        OmegaConf.set_struct(config, False)
        config.pop("hydra")
        try:
            return dict(dotted(OmegaConf.to_container(config, resolve=True)))
        except OmegaConfBaseException:  # a key that may still be overridden
            return dict(dotted(OmegaConf.to_container(config)))


def _loader() -> Any:
    return GlobalHydra.instance().config_loader()


def explain(error: BaseException, config_dir: Path, config_name: str, arguments: list[str]) -> str:
    """One line for an error of Hydra's; `arguments` are the command line without the program."""
    text = " ".join(str(error).split())
    if line := _unreadable(text, config_name, arguments):
        return line
    configs: AbstractContextManager[Any] = nullcontext()
    if not GlobalHydra.instance().is_initialized():
        configs = initialize_config_dir(str(config_dir.resolve()), version_base="1.3")
    with configs:
        chosen = Chosen(config_name, arguments)
        return (
            _chosen_already(text, chosen)
            or _removed_by_choice(text, chosen)
            or _unknown_choice(text, chosen)
            or _unknown_key(text, chosen)
            or _several_values(text)
            or text
        )


def _unreadable(text: str, config_name: str, arguments: list[str]) -> str | None:
    """A line for a word that Hydra's grammar rejects."""
    if "missing EQUAL" not in text and "override_grammar" not in text:
        return None
    if path := next((word for word in arguments if os.path.exists(word)), None):
        key = "resume" if config_name == "train" else "checkpoint"
        return f"{path}: has no key, such as {shlex.quote(override(key, path))}"
    typed, _ = hydra_options().parse_known_args(arguments)
    word = next((word for word in typed.overrides if parsed(word) is None), None)
    if word is None:
        return None
    key, equals, value = word.partition("=")
    if not equals:
        # `key = value` is three words.
        after = arguments[arguments.index(word) + 1 :][:2]
        value = next((each for each in after if "=" not in each), "VALUE")
        return f"{word}: has no value, such as {word}={value}"
    if parsed(f"{key}=1") is None:
        return f"{word}: {key or 'nothing'} is not a valid key for Hydra; write KEY=VALUE"
    start = arguments.index(word)
    for end in range(start + 2, len(arguments) + 1):
        if parsed(whole := " ".join(arguments[start:end])) is not None:
            return f"{word}: ends at a space; quote it for the shell: {shlex.quote(whole)}"
    quoted = shlex.quote(override(key, value))
    return f"{word}: cannot be parsed by Hydra; if it is text, quote it twice: {quoted}"


def _unknown_choice(text: str, chosen: Chosen) -> str | None:
    found = re.search(r"Could not (?:load|find) '([\w./-]+)/([^'/]*)'", text)
    if found is None:
        return None
    group, choice = found.groups()
    if choice.startswith("["):
        as_list = shlex.quote(f"{group}={choice}")
        return f'{group}="{choice}": is one text, because of the inner quotes; use {as_list}'
    if group == "hydra/launcher":
        extra = "joblib" if choice == "joblib" else "submitit"
        return (
            f"sweep/launcher: {choice} is not installed; use sweep/launcher=serial, or type "
            f"`uv pip install -e '.[{extra}]'`"
        )
    if options := choices(group):
        example = _with_choice(group, choice, nearest(choice, options) or options[0], chosen)
        return f"{group}={choice}: must be one of {', '.join(options)}, such as {example}"
    above, _, inside = group.rpartition("/")
    if choices(inside):
        return (
            f"{group}/{choice}: there is no such file; write `override /{inside}: {choice}` into "
            f"the list of defaults of the file in {above}"
        )
    return None


def _with_choice(group: str, wrong: str, right: str, chosen: Chosen) -> str:
    """The override that was typed, with the right choice; other entries of its list stay."""
    wrong_entry = rf"(?<![\w.-]){re.escape(wrong)}(?![\w.-])"
    for word in chosen.overrides:
        key, _, value = word.partition("=")
        if key.lstrip("+") == group and wrong and re.search(wrong_entry, value):
            return shlex.quote(f"{key}={re.sub(wrong_entry, right, value)}")
    return f"{group}={right}"


def _unknown_key(text: str, chosen: Chosen) -> str | None:
    found = re.search(r"Could not override '([\w./@-]+)'|'([\w./@-]+)' does not exist", text)
    if found is None:
        return None
    key = found[1] or found[2]
    group, _, place = key.partition("@")
    if place:
        return (
            f"{group}: is changed below {place.rpartition('.')[0]}, where there is none; begin the "
            "file that changes it with the line `# @package _global_`"
        )
    group = key.partition(".")[0]
    if f"~{group}" in chosen.overrides:
        return f"~{group}: removes what another override changes; leave one of them out"
    if line := added_to_a_list(chosen.overrides):
        return line
    if having := chosen.choices_with(key):
        if f"~{key}" in chosen.overrides:
            return f"~{key}: there is no {key} to remove; leave it out"
        return f"{key}: this key exists only with {' or '.join(having)}; add {group}={having[0]}"
    if key in chosen.keys:
        return f"{key}: is no group of `{command_of(chosen.config_name)}`; leave it out"
    line = no_such_key(key, chosen.keys)
    node = chosen.values.get(key.rpartition(".")[0])
    target = str(node.get("_target_", "")) if isinstance(node, dict) else ""
    # The library's own, and the project's, say what they take; an optimizer takes more.
    if "did you mean" not in line and target and not target.startswith("onecurve."):
        line = (
            f"{key}: there is no such key; if it is an argument of {target}, begin with a plus: "
            f"+{key}=..."
        )
    return line


def _several_values(text: str) -> str | None:
    found = re.search(r"(?:Ambiguous value for argument|Sweep parameters) '(.+?)'", text)
    return f"{found[1]}: several values are a sweep; add -m, or give one value" if found else None


def added_to_a_list(arguments: list[str]) -> str | None:
    """A line for `+callbacks=b` beside `callbacks=[a]`, of which Hydra takes one alone."""
    for word in reversed(arguments):
        group = word.removeprefix("+").partition("=")[0]
        typed = [each for each in arguments if each.lstrip("+").startswith(f"{group}=")]
        # No group has a dot in its name.
        if word.startswith("+") and len(typed) > 1 and "." not in group and choices(group):
            names = dict.fromkeys(each.partition("=")[2].strip("[]") for each in typed)
            plus = "+" if typed[0].startswith("+") else ""
            both = shlex.quote(f"{plus}{group}=[{','.join(filter(None, names))}]")
            return f"{word}: is not added to a list that is typed as well; use {both}"
    return None


def _removed_by_choice(text: str, chosen: Chosen) -> str | None:
    """A line for `~callbacks=a`, where one entry of several is meant."""
    if not re.search("Could not delete '|deletion value must be a string", text):
        return None
    for word in chosen.overrides:
        group, _, value = word.removeprefix("~").partition("=")
        if word.startswith("~") and group in groups_of_lists(chosen.config_name):
            names = filter(None, value.strip("[]").split(","))
            instead = " ".join(shlex.quote(f"~{group}.{name}") for name in names)
            instead = instead or shlex.quote(f"{group}=[]")
            return f"{word}: removes no single entry of {group}; use {instead} instead"
    return None


def groups_of_lists(config_name: str) -> dict[str, list[str]]:
    """The groups of which several files may be chosen, with those that the defaults name."""
    primary = _loader().repository.load_config(config_name)
    return {
        str(default.group): default.value
        for default in primary.defaults_list or ()
        if hasattr(default, "group")
        if isinstance(default.value, list)
    }


def replaced_by_one(config_name: str, arguments: list[str]) -> str | None:
    """The line about `callbacks=swa`, which leaves nothing of the defaults."""
    for group, names in groups_of_lists(config_name).items():
        for word in arguments:
            choice = word.removeprefix(f"{group}=")
            is_new = choice != word and choice in choices(group) and choice not in names
            if is_new and choice != "none":
                return f"{word}: replaces {', '.join(names)}; +{word} adds to them"
    return None


def _chosen_already(text: str, chosen: Chosen) -> str | None:
    """A line for `+group=choice` of a group that the defaults, or another word, have already."""
    found = re.search(
        r"Multiple values for ([\w/@.-]+)\. To override|([\w/@.-]+) appears more than once in", text
    )
    if found is None:
        return None
    key = found[1] or found[2]
    if key in groups_of_lists(chosen.config_name):
        return added_to_a_list(chosen.overrides)
    word = next((each for each in chosen.overrides if each.startswith(f"+{key}=")), None)
    return word and (
        f"{word}: {key} is among the defaults already; leave the plus out, and use {word[1:]}"
    )
