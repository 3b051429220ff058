"""Whether a network on pieces of a sequence, put together, gives what it gives for the whole.

A convolution over positions, an RNN, a mean, or positions that are counted from 0 on every piece
would be silently wrong. So before training it is tried, on this rank alone: threads stand for the
ranks of the axis, since the network may not fit on the device whose process group could carry it.
"""

from collections.abc import Callable
from functools import partial
from threading import Condition, Thread, local
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from ...errors import UserError, in_short
from ..trial import evaluating, outcome, restore_constant, same, vary_constant
from .attention import working_on
from .axis import Piece
from .sequence import Tensors, cut_along, whole_along

POSITIONS = 16
"""Of each piece that is tried, at most."""

INSTEAD = (
    "positions may meet in torch.nn.functional.scaled_dot_product_attention alone (nn.Multihead"
    "Attention: need_weights=False), and are told by onecurve.positions(inputs); change it, or use "
    "strategy.context=1"
)


def check_pieces(module: LightningModule, inputs: Tensors, size: int) -> None:
    """Compare `forward` of pieces, put together, with that of the whole, in evaluation mode.

    For two samples and some positions of each. What is the same number everywhere in a parameter,
    as zeros that hide what comes before them, is moved meanwhile. Nothing is left changed.

    Args:
        module: Whole, on the CPU.
        inputs: What enters `forward`.
        size: How many pieces there will be.

    Raises:
        UserError: If the results differ.
    """
    samples = tuple(value[:2].cpu() for value in inputs)
    name = type(module).__name__
    cut_along(samples, Simulated(size))  # or refused
    constant = vary_constant(module)
    try:
        with evaluating(module), torch.no_grad():
            samples, expected = _of_some_positions(module, samples, size)
            found = outcome(partial(_on_pieces, module.forward, size), samples, module).outputs
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"strategy.context={size}: {name}.forward fails on a piece of the sequence "
            f"({in_short(error)}); {INSTEAD}"
        ) from error
    finally:
        restore_constant(module, constant)
    if not same(expected, found):
        raise UserError(
            f"strategy.context={size}: {name}.forward gives something else on pieces of the "
            f"sequence than on the whole; {INSTEAD}"
        )


def _of_some_positions(module: LightningModule, samples: Tensors, size: int) -> tuple[Tensors, Any]:
    """Samples that are as short as will do, and what is to come of them."""
    length = samples[0].shape[1]
    short = tuple(
        value[:, : POSITIONS * size] if value.ndim > 1 and value.shape[1] == length else value
        for value in samples
    )
    try:
        return short, outcome(module.forward, short, module).outputs
    except Exception:  # it is for one length, as masks are
        return samples, outcome(module.forward, samples, module).outputs


class Simulated:
    """An axis whose ranks are threads of this process, of which one at a time computes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.turn = Condition()
        self._of_thread = local()
        self._given: dict[int, Tensor] = {}
        self._taken: Tensor
        self._rounds = 0
        self._ended = 0

    @property
    def rank(self) -> int:
        """That of the thread; the first outside of them."""
        return getattr(self._of_thread, "rank", 0)

    def gather(self, tensor: Tensor, dim: int) -> Tensor:
        """See `Axis`; without gradients."""
        now = self._rounds
        self._given[self.rank] = tensor
        if len(self._given) == self.size:
            self._taken = torch.cat([self._given[rank] for rank in range(self.size)], dim)
            self._given = {}
            self._rounds += 1
            self.turn.notify_all()
        self.turn.wait_for(lambda: self._rounds > now or self._ended)
        if self._rounds == now:
            raise RuntimeError("pieces differ in how often they come to attention")
        return self._taken

    def run(self, function: Callable[[], Any]) -> Any:
        """Call a function on every rank.

        Returns:
            What it returns on the first.

        Raises:
            Exception: The first that was raised on any of them.
        """
        results: dict[int, Any] = {}
        errors: list[Exception] = []

        def work(rank: int) -> None:
            self._of_thread.rank = rank
            with self.turn, torch.no_grad():
                try:
                    results[rank] = function()
                except Exception as error:
                    errors.append(error)
                self._ended += 1
                self.turn.notify_all()

        threads = [Thread(target=work, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return results[0]


def _on_pieces(forward: Callable[..., Any], size: int, *inputs: Tensor) -> Any:
    axis, length = Simulated(size), inputs[0].shape[1]

    def on_one() -> Any:
        return whole_along(forward(*cut_along(inputs, axis)), axis, length)

    with working_on(Piece(axis, length // size)):
        return axis.run(on_one)
