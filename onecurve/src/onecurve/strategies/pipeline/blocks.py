"""Blocks in an nn.ModuleList or nn.ModuleDict, which code around them calls one after the other.

Most networks that people train are so: a loop over blocks in somebody's ``forward``, with a mask,
positions or a condition beside what passes from block to block. That code runs on every rank as it
stands, and so does what comes before the blocks and behind them. While it runs, stand-ins are in
the blocks' place: they note what each is called with, and the last of them passes the batch through
the pipeline and returns what its block would.

    code around    x ──> h0 ──> block ──> block ──> ... ──> block ──> h ──> its loss
    stand-ins             notes    notes             the pipeline runs

What a stand-in before the last returns has a shape and no data (the meta device), so nothing can be
made of it unseen: a network that uses what passes between its blocks is rejected.
A block gets what its arguments were in that call: outputs of the block before, which have come
through the pipeline, and tensors that every rank has, of which it takes the micro-batch's rows. The
rows' numbers travel with them; so does what is differentiated.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum
from typing import Any, NamedTuple, Self

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from ...compat.of_torch import (
    FakeTensor,
    is_in_backward,
    tensor_leaves,
    tree_flatten,
    tree_map_only,
    tree_unflatten,
    without_data,
)
from ...compat.patches import replaced
from ...errors import UserError, in_short, say
from ..layers import CONTAINERS
from .remote import NO_DATA
from .shapes import Tensors, empty, with_tensors_on

BETWEEN = (
    "uses what passes between them, or skips some (let blocks return all that is needed later)"
)
NO_GRADIENT = "does not require grad"  # as PyTorch says of what has passed no block yet
PLAIN = (bool, int, float, complex, str, Enum, torch.dtype, torch.device)


class Before(NamedTuple):
    """An argument that is one of the tensors that the block before returns."""

    number: int


class Carried(NamedTuple):
    """An argument that is sent along with the micro-batches, because it requires a gradient."""

    number: int


class Here(NamedTuple):
    """An argument that every rank has for the full batch."""

    value: Tensor
    has_rows: bool
    """Whether it has a row for each sample."""


class Values(NamedTuple):
    """The arguments of a call (Before, Carried, Here, or no tensor), or its result, as a tree."""

    leaves: list[Any]
    structure: Any


class Blocks:
    """The blocks of one nn.ModuleList or nn.ModuleDict, and their calls in the pass under way.

    Attributes:
        holder: Whose code calls them, the innermost module around them that is no container.
        path: The container's dotted name in the task.
        rows: Samples of the whole batch in the pass under way, where that is the first dimension.
        kept: Which of the tensors that leave the last block the code around is given.
        pipeline: Passes tensors through all stages, in one piece if `whole`; set once there are
            stages.
    """

    pipeline: Callable[..., Tensors]
    _has_said: bool = False

    def __init__(self, task: LightningModule, container: nn.ModuleList | nn.ModuleDict) -> None:
        self.task = task
        self.path = next(name for name, module in task.named_modules() if module is container)
        around, _, self.attribute = self.path.rpartition(".")
        self._parent = task.get_submodule(around)
        while isinstance(task.get_submodule(around), CONTAINERS):
            around = around.rpartition(".")[0]
        self.name, self.holder = around, task.get_submodule(around)
        blocks: Any = container
        self.blocks = {f"{self.path}.{key}": block for key, block in blocks.named_children()}
        self.calls: list[Values] = []
        self.rows = 0
        self.kept: list[int] = []
        self._held = blocks
        stand_ins = [StandIn(self, number, block) for number, block in enumerate(blocks.children())]
        self._stand_ins = (
            nn.ModuleList(stand_ins)
            if isinstance(blocks, nn.ModuleList)
            else nn.ModuleDict(dict(zip(blocks, stand_ins, strict=True)))
        )
        self._outer: dict[int, Any] = {}
        self._inputs: list[Tensor] = []
        self._left: list[Tensor] = []
        self._known: dict[Any, tuple[Values, bool]] = {}
        self._passes_whole = False
        self._copies: list[nn.Module] = []

    def __deepcopy__(self, memo: Any) -> Self:
        """Copies of layers, as made to learn shapes, belong to the same pass."""
        return self

    @property
    def have_parts(self) -> bool:
        """Whether every block has submodules."""
        return all(any(True for _ in block.children()) for block in self.blocks.values())

    @property
    def size(self) -> int:
        """The number of their parameters."""
        return sum(parameter.numel() for parameter in self._held.parameters())

    def layers(self) -> dict[str, nn.Module]:
        """The layers of stages, one for each block, by its name in the task."""
        # As they are before they are sharded, and moved elsewhere.
        self._copies = [*with_tensors_on(torch.device("meta"), self.blocks).values()]
        return {
            name: BlockLayer(self, number, block)
            for number, (name, block) in enumerate(self.blocks.items())
        }

    @contextmanager
    def standing_in(self) -> Iterator[None]:
        """Let the code around the blocks call stand-ins."""
        if getattr(self._parent, self.attribute) is self._stand_ins:
            yield
            return
        setattr(self._parent, self.attribute, self._stand_ins)
        try:
            yield
            if self.calls:
                raise self._rejection(f"calls {len(self.calls)} of {len(self.blocks)} of them")
        except RuntimeError as error:
            if self.calls and (NO_DATA.search(str(error)) or NO_GRADIENT in str(error)):
                raise self._rejection(BETWEEN) from error
            raise
        finally:
            setattr(self._parent, self.attribute, self._held)
            self._forget()

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Within a fit or an evaluation, `forward` of the holder calls stand-ins."""
        forward = self.holder.forward

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def forward_with_stand_ins(*args: Any, **kwargs: Any) -> Any:
            self._check_wanted(kwargs)
            with self.standing_in():
                return forward(*args, **kwargs)

        with ExitStack() as stack:
            for config in (getattr(module, "config", None) for module in self.task.modules()):
                # Of transformers: what a block keeps for the next token is of no use here.
                if getattr(config, "use_cache", False):
                    stack.enter_context(replaced(config, "use_cache", False))
            stack.enter_context(replaced(self.holder, "forward", forward_with_stand_ins))
            yield

    def _check_wanted(self, kwargs: dict[str, Any]) -> None:
        # Networks of transformers collect more from their blocks if they are asked to.
        config = getattr(self.holder, "config", None)
        for name in ("output_hidden_states", "output_attentions", "output_router_logits"):
            if kwargs.get(name, getattr(config, name, False)):
                raise self._rejection(f"is asked for more than they return ({name})")

    def called(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Note the call of a block; the last one runs the pipeline."""
        if number != len(self.calls):
            instead = "; use strategy.activation_checkpointing=full, not torch.utils.checkpoint"
            what = "does not call them one after the other, each once"
            raise self._rejection(what + instead * is_in_backward())
        leaves, structure = tree_flatten((args, kwargs))
        if number == 0:
            # What enters the first block, beside what all ranks have.
            first = next(iter(tensor_leaves(leaves)), None)
            if first is None or not first.is_floating_point():
                raise self._rejection("calls the first without a tensor of numbers")
            self._inputs, self._outer = [first], {id(first): (first, Before(0))}
            self.rows = len(first)
        sources = [self._source(leaf) for leaf in leaves]
        if not any(isinstance(source, Before) for source in sources):
            raise self._rejection("calls one without what the one before has returned")
        self.calls.append(Values(sources, structure))
        returned, are_of_samples = self._measured(number, leaves, structure)
        self._passes_whole |= not are_of_samples
        if number < len(self.blocks) - 1:
            # A new object each: by that it is known again.
            leaves = tree_map_only(Tensor, torch.empty_like, returned.leaves)
            self._left = tensor_leaves(leaves)
            return tree_unflatten(leaves, returned.structure)
        # What has no row for each sample cannot be put together from those of micro-batches.
        tensors = tensor_leaves(returned.leaves)
        self.kept = [index for index, leaf in enumerate(tensors) if self.has_rows(leaf)]
        numbers = torch.arange(self.rows, device=self._inputs[0].device)
        inputs = (self._inputs[0], numbers, *self._inputs[1:])
        if self._passes_whole and not self._has_said and dist.get_rank() == 0:
            say(
                f"strategy=pipeline: the blocks in {self.path} get a tensor of {self.rows} rows "
                "that is perhaps not of the batch's samples, so such a batch passes in one piece; "
                "use another data.batch_size"
            )
            self._has_said = True
        outputs = iter(self.pipeline(inputs, whole=self._passes_whole))
        leaves = [next(outputs) if self.has_rows(leaf) else leaf for leaf in returned.leaves]
        self._forget()
        return tree_unflatten(leaves, returned.structure)

    def _source(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            if leaf is None or callable(leaf) or isinstance(leaf, PLAIN):
                return leaf
            name = type(leaf).__name__
            without = " (give generate use_cache=False)" if "Cache" in name else ""
            raise self._rejection(f"calls one with a {name}{without}")
        for number, left in enumerate(self._left):
            if leaf is left:
                return Before(number)
        if leaf.is_meta:
            raise self._rejection(BETWEEN)
        known = self._outer.get(id(leaf))
        if known is not None and not (self.calls and isinstance(known[1], Before)):
            return known[1]
        has_rows = self.has_rows(leaf)
        source: Any = Here(leaf.detach(), has_rows)
        if leaf.requires_grad and torch.is_grad_enabled():
            source = Carried(self.num_carried)
            if not has_rows and leaf.shape[:1] != (1,):
                raise self._rejection(
                    f"calls one with a tensor {tuple(leaf.shape)} that is trained and of no sample"
                )
            self._inputs.append(leaf.expand(self.rows, *leaf.shape[1:]))
        # The tensor as well, whose id would be another's once it is gone.
        self._outer[id(leaf)] = leaf, source
        return source

    @property
    def num_carried(self) -> int:
        """The number of tensors that are sent along with the micro-batches."""
        return len(self._inputs) - 1

    @property
    def shapes(self) -> tuple[Any, ...]:
        """The shapes of what every rank has, on which those of outputs may depend."""
        here = [leaf.value for call in self.calls for leaf in call.leaves if isinstance(leaf, Here)]
        return tuple((value.shape, value.dtype) for value in here)

    def has_rows(self, value: Any) -> bool:
        """Whether a value is a tensor with one row per sample of the full batch."""
        return isinstance(value, Tensor) and value.shape[:1] == (self.rows,)

    def _key(self, number: int, leaves: list[Any]) -> tuple[Any, ...]:
        """What the shapes depend on that a block returns."""
        block = [*self.blocks.values()][number]
        return (
            type(block),
            block.training,
            *(parameter.shape for parameter in self._copies[number].parameters()),
            *(
                (leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else repr(leaf)
                for leaf in leaves
            ),
        )

    def _without_data(self, number: int, leaves: list[Any], structure: Any) -> tuple[Any, bool]:
        """What a block returns for tensors of these shapes, and whether it changes its input."""
        block = self._copies[number].train([*self.blocks.values()][number].training)
        device = self._inputs[0].device
        with torch.inference_mode(False), torch.no_grad(), without_data():
            unset = tree_map_only(Tensor, lambda leaf: empty(leaf, device), leaves)
            args, kwargs = tree_unflatten(unset, structure)
            # A torch.Size has become a tuple.
            _, given = tree_flatten((args, kwargs))
            returned = with_tensors_on(device, {"": block})[""](*args, **kwargs)
        after, again = tree_flatten((args, kwargs))
        return returned, again != given or any(
            a is not b for a, b in zip(after, unset, strict=True)
        )

    def _measured(self, number: int, leaves: list[Any], structure: Any) -> tuple[Values, bool]:
        """The result of a block, on the meta device, and whether all rows are those of samples.

        A table of positions has as many rows as a batch where a sequence is as long. With one row
        more in all tensors that have as many, a block works if they are of samples.
        """
        of_samples = (self._inputs[0], *self._left)
        with_rows = [at for at, leaf in enumerate(leaves) if self.has_rows(leaf)]
        is_certain = all(any(leaves[at] is each for each in of_samples) for at in with_rows)
        key = (is_certain, *self._key(number, leaves))
        if key not in self._known:
            try:
                returned, changes = self._without_data(number, leaves, structure)
            except Exception as error:  # whatever a block does with what has no data
                raise self._rejection(
                    f"calls one that cannot be measured without data ({in_short(error)})"
                ) from error
            if changes:
                raise self._rejection("calls one that changes what it is given, such as a cache")
            without_data = tree_map_only(Tensor, lambda value: empty(value, "meta"), returned)
            if not is_certain:
                more = list(leaves)
                for at in with_rows:
                    shape = (self.rows + 1, *leaves[at].shape[1:])
                    more[at] = leaves[at].new_empty(shape, device="meta")
                with suppress(Exception):  # whatever a block does with another shape
                    self._without_data(number, more, structure)
                    is_certain = True
            self._known[key] = Values(*tree_flatten(without_data)), is_certain
        return self._known[key]

    def _rejection(self, what: str) -> UserError:
        self._forget()
        around = f"{self.name}.forward".lstrip(".")
        return UserError(
            f"strategy=pipeline: the blocks in {self.path} make the stages, and {around} {what}; "
            "return the layers that self(inputs) calls from a method layers(), or use "
            "strategy=fsdp"
        )

    def _forget(self) -> None:
        self.calls, self._left, self._inputs, self._outer = [], [], [], {}
        self._passes_whole = False


class StandIn(nn.Module):
    """Replaces a block while the code around it runs; its attributes are the block's."""

    def __init__(self, blocks: Blocks, number: int, block: nn.Module) -> None:
        super().__init__()
        # Not as a submodule: a block is one of its holder alone.
        vars(self).update(blocks=blocks, number=number, block=block)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["block"], name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.blocks.called(self.number, args, kwargs)


class BlockLayer(nn.Module):
    """A block as a layer of a stage, which takes and returns tensors only."""

    def __init__(self, blocks: Blocks, number: int, block: nn.Module) -> None:
        super().__init__()
        self.blocks = blocks
        self.number = number
        self.block = block

    def forward(self, *inputs: Tensor) -> Any:
        """Call the block with the outputs of the one before, the rows' numbers (n) and the rest."""
        if not self.blocks.calls:
            raise UserError("blocks are measured once they are called")
        call = self.blocks.calls[self.number]
        at = len(inputs) - 1 - self.blocks.num_carried
        before, rows, carried = inputs[:at], inputs[at], inputs[at + 1 :]
        leaves = [self._argument(leaf, before, rows, carried) for leaf in call.leaves]
        args, kwargs = tree_unflatten(leaves, call.structure)
        left = tensor_leaves(self.block(*args, **kwargs))
        if _have_no_data(left) and not _have_no_data(inputs):
            what = "what it computed when it was measured without data, as functools.cache does"
            raise self.blocks._rejection(f"calls one that keeps {what}")
        if self.number < len(self.blocks.blocks) - 1:
            return (*left, rows, *carried)
        kept = tuple(left[number] for number in self.blocks.kept)
        return kept[0] if len(kept) == 1 else kept

    def _argument(self, leaf: Any, before: Tensors, rows: Tensor, carried: Tensors) -> Any:
        if isinstance(leaf, Before):
            return before[leaf.number]
        if isinstance(leaf, Carried):
            return carried[leaf.number]
        if isinstance(leaf, Here):
            is_full = len(rows) == self.blocks.rows or not leaf.has_rows
            return leaf.value if is_full else leaf.value[rows]
        return leaf


def _have_no_data(tensors: Iterable[Tensor]) -> bool:
    return any(isinstance(tensor, FakeTensor) for tensor in tensors)
