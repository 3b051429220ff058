"""What a line proposes can be typed where it is read: in a script, or on the command line."""

import re

import pytest
from several_fits import Small, fits_in_ranks
from torch import nn

import onecurve
from onecurve.errors import PROJECT, UserError, in_digits, in_python


class HasUnused(Small):
    """A layer gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(2, 2)


def test_what_a_line_proposes_to_a_script_is_python() -> None:
    line = fits_in_ranks({"": (HasUnused, onecurve.DDP(), {})})[""]
    found = re.search(r", or use (DDP\(.*\))$", line)
    assert found, line
    strategy = eval(found[1], {"DDP": onecurve.DDP})
    assert isinstance(fits_in_ranks({"": (HasUnused, strategy, {})})[""], dict)


def test_a_small_number_is_not_shown_as_zero() -> None:
    assert [*map(in_digits, (0, 0.5, 3.214e-6, 1e30))] == ["0.0000", "0.5000", "3.21e-06", "1e+30"]


LINES = {
    "strategy=fsdp: x; use self.trainer.strategy.gradient_norm(), or strategy=ddp": (
        "strategy=fsdp: x; use self.trainer.strategy.gradient_norm(), or strategy=DDP()"
    ),
    "strategy.schedule=1f2b: must be one of gpipe, 1f1b; such as strategy.schedule=1f1b": (
        "schedule='1f2b': must be one of gpipe, 1f1b; such as schedule='1f1b'"
    ),
    "strategy=pipeline: no; give 'strategy.balance=[2,3]' or strategy.plan=[...], or auto": (
        "strategy=pipeline: no; give Pipeline(balance=[2, 3]) or Pipeline(plan=[...]), or auto"
    ),
    "callbacks.timer.duration=00:00:01:00: is used up; leave it out: '~callbacks.timer'": (
        "Timer(duration='00:00:01:00'): is used up; leave it out: Timer"
    ),
    "trainer.devices=3: 2 are needed; use trainer.devices=2. The optimizer.lr stays": (
        "Trainer(devices=3): 2 are needed; use Trainer(devices=2). The optimizer.lr stays"
    ),
    "monitor=val/loss: none; such as monitor=val/acc mode=max": (
        "monitor='val/loss': none; such as monitor='val/acc', mode='max'"
    ),
    "data.resize=half: no; resume with resume=last": (
        "resize='half': no; resume with ckpt_path='last'"
    ),
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_in_the_words_of_its_reader(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PROJECT, raising=False)
    assert str(UserError(line)) == LINES[line]
    assert in_python(LINES[line]) == LINES[line]  # whoever passes it on may say it again
    monkeypatch.setenv(PROJECT, "/project")
    assert str(UserError(line)) == line
