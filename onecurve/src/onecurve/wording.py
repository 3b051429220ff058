"""A line of this library in the words of its reader: those of a script, or of the command line.

Lines are written as overrides of the command line, such as ``strategy.microbatches=2``. In a script
they become the arguments that a reader can type there, such as ``Pipeline(microbatches=2)``.
"""

import os
import re

# The variable in which a command tells the processes that it starts where its script is.
PROJECT = "ONECURVE_PROJECT"

STRATEGIES = {
    "single": "Single",
    "dp": "DP",
    "ddp": "DDP",
    "fsdp": "FSDP",
    "pipeline": "Pipeline",
    "tensor": "Tensor",
    "mesh": "mesh",
}
CALLBACKS = {
    "batch_size_finder": "BatchSizeFinder",
    "checkpoint": "BestAndLast",
    "ema": "ExponentialMovingAverage",
    "lr_finder": "LearningRateRangeTest",
    "nan_guard": "NanGuard",
    "swa": "StochasticWeightAveraging",
    "tensorboard": "Displays",
    "timer": "Timer",
}
WORDS = {"true": "True", "false": "False", "null": "None", "resume": "ckpt_path"}
NOT_INSIDE = r"(?<![\w./~+-])"
OVERRIDE = re.compile(
    NOT_INSIDE + r"(?P<quote>'?)(?P<key>(?:strategy|trainer|callbacks|data|optimizer|scheduler|"
    r"model|task)(?:\.[a-z_]\w*)+|monitor|mode|resume)="
    r"(?P<value>\[[^\]]*\]|\{[^}]*\}|[^\s;,'\")]+?)(?P=quote)(?=[\s;,'\")]|[:.](?:\s|$)|$)"
)
STRATEGY = re.compile(rf"{NOT_INSIDE}strategy=({'|'.join(STRATEGIES)})\b(?![:=])")
CALLBACK = re.compile(rf"{NOT_INSIDE}'?~?callbacks\.({'|'.join(CALLBACKS)})\b'?")


def for_reader(line: str) -> str:
    """The line for whoever has typed a command, or runs a script."""
    return line if PROJECT in os.environ else in_python(line)


def in_python(line: str) -> str:
    """The line for a script; what is in its words already stays as it is."""
    about = re.search(rf"strategy=({'|'.join(STRATEGIES)}):", line)
    strategy = STRATEGIES[about[1]] if about else None

    def argument(found: re.Match[str]) -> str:
        group, _, name = found["key"].rpartition(".")
        top, _, entry = group.partition(".")
        classes = {"trainer": "Trainer", "strategy": strategy, "callbacks": CALLBACKS.get(entry)}
        if name == "_target_" or (top == "callbacks" and not classes[top]):
            return found[0]  # of a YAML file
        typed = f"{WORDS.get(name, name)}={literal(found['value'])}"
        return f"{classes[top]}({typed})" if classes.get(top) else typed

    line = OVERRIDE.sub(argument, line).replace("' mode=", "', mode=")
    line = STRATEGY.sub(lambda found: f"strategy={STRATEGIES[found[1]]}()", line)
    return CALLBACK.sub(lambda found: CALLBACKS[found[1]], line)


def literal(value: str) -> str:
    """A value of an override as Python writes it."""
    if value in WORDS or re.fullmatch(r"[\d.+-][\d.e+-]*|\{.*\}|[A-Z]+", value):
        return WORDS.get(value, value)
    if value.startswith("["):
        return f"[{', '.join(literal(each.strip()) for each in value[1:-1].split(',') if each)}]"
    return repr(value)
