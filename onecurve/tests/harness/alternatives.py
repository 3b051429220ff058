"""Follows the alternatives that an error line proposes, and builds the command lines for them."""

import re
import shlex
from collections.abc import Iterator

# Words that stand for what a person fills in.
LEFT_OPEN = re.compile(r"\.\.\.|DATE|VALUE|CLASS|MyClass")
KEY = r"[+~]?[a-z][\w./]*"
QUOTED = r"""'[^']+'(?:"'"'[^']*')*"""  # with apostrophes, as shlex.quote writes them
WORD = rf"(?:{QUOTED}|{KEY}=[^\s,;?()]+)"
PROPOSED = re.compile(rf"\b(?:such as|use|add|with|or|argument:|twice:) ({WORD}(?: {WORD})*)")
MEANT = re.compile(r"did you mean (.*)\?")


def followed(line: str, typed: list[str]) -> Iterator[list[str]]:
    """For each alternative that a line proposes, the command that follows it.

    A word takes the place of one with the same key, and else stands beside what is refused, unless
    the line says that this is to go.
    """
    refused = re.split("[=:]", line.removeprefix("error: "))[0].lstrip("+~")
    goes = re.search("leave it out, or|instead|a space", line) is not None
    for proposed in PROPOSED.findall(line):
        if LEFT_OPEN.search(proposed):
            continue
        words = shlex.split(proposed.replace("callbacks=NAME", "callbacks=ema"))
        gone = {*map(key_of, words)} | ({refused} if goes else set())
        stay = (word for word in typed if "=" in word[1:] or word.startswith("~"))
        yield [*(word for word in stay if key_of(word) not in gone), *words]
    if meant := MEANT.search(line):
        # Another class, in the place of the value, or another key with the same value.
        is_class = refused.endswith("_target_")
        for name in meant[1].split(" or "):
            with_value = [f"{refused}={name}"] if is_class else None
            yield with_value or [re.sub(rf"[+]?{re.escape(refused)}", name, word) for word in typed]


def key_of(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]
