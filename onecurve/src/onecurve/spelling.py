"""What a misspelt name may mean: the nearest of the known ones."""

from collections.abc import Sequence
from difflib import get_close_matches

# Keys of earlier releases, and what to do instead.
REMOVED = {
    **dict.fromkeys(
        ("checkpoint.on_failure", "gc_every_n_steps", "strategy.min_params", "strategy.sequence"),
        "was removed; leave it out, also in the files of configs/",
    ),
    "checkpoint.mirror_to": "is gone: checkpoints are written to an address by "
    "callbacks.checkpoint.dirpath=s3://BUCKET/PATH",
    "predict.images": "was removed; data modules read files: data.images=FOLDER, if it has that",
}


def nearest(name: str, options: Sequence[str]) -> str | None:
    """The option with the fewest changes from a name; None if no option is similar."""
    exchanged = [option for option in options if sorted(option) == sorted(name)]
    close = exchanged or get_close_matches(name, options, 5)
    # Prefer one wrong letter to one extra letter: dpp means ddp, not dp.
    close.sort(key=lambda option: (changes(name, option), len(option) != len(name), option))
    return close[0] if close else None


def no_such_key(key: str, known: Sequence[str]) -> str:
    """The error line for a dotted key that is not among the known ones."""
    if key in REMOVED:
        return f"{key}: {REMOVED[key]}"
    group, _, _ = key.rpartition(".")
    names = [_name(each) for each in known if each.rpartition(".")[0] == group]
    beside = [each for each in names if not each.startswith("_")]
    if meant := _meant(key, known, beside):
        hint = f"did you mean {' or '.join(meant)}?"
    elif group and beside:
        hint = f"{group} has {', '.join(beside[:5])}"
    else:
        hint = "leave it out, or see `--cfg job` for all"
    return f"{key}: there is no such key; {hint}"


def _meant(key: str, known: Sequence[str], beside: Sequence[str]) -> list[str]:
    """The keys that may be meant; those of the same group are preferred."""
    group, dot, name = key.rpartition(".")
    if short := [each for each in beside if _initials(each) == name or each == _initials(name)]:
        return [f"{group}{dot}{each}" for each in short]
    if close := nearest(name, beside):
        return [f"{group}{dot}{close}"]
    # `lr` means optimizer.lr, `epochs` trainer.max_epochs, and `device` trainer.devices.
    names = [_name(each) for each in known]
    parts = [] if group else [each for each in names if each.endswith(f"_{name}")]
    near = None if group else nearest(name, names)
    for same in ([name], parts, [near]):
        if found := [each for each in known if _name(each) in same]:
            least = min(each.count(".") for each in found)
            return [each for each in found if each.count(".") == least]
    close = None if beside else nearest(key, known)
    return [close] if close else []


def _name(key: str) -> str:
    return key.rpartition(".")[2]


def _initials(name: str) -> str:
    """The initials of a name: `lr` for `learning_rate`."""
    return "".join(word[0] for word in name.split("_") if word)


def changes(word: str, other: str) -> int:
    """The number of letters that are wrong, missing, extra, or swapped with the next one.

    https://en.wikipedia.org/wiki/Damerau-Levenshtein_distance (optimal string alignment)
    """
    before, row = [0], list(range(len(other) + 1))
    for at, letter in enumerate(word, start=1):
        last, before, row = before, row, [at]
        for place, wanted in enumerate(other, start=1):
            least = min(row[-1] + 1, before[place] + 1, before[place - 1] + (letter != wanted))
            if at > 1 and place > 1 and word[at - 2] + letter == wanted + other[place - 2]:
                least = min(least, last[place - 2] + 1)
            row.append(least)
    return row[-1]
