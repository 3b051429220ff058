"""Shows an optimizer's step the parameters that this rank holds, and nothing of the others.

A step that combines parameters would do so with those of this rank's layers, silently: Lamb of timm
divides by the norm over all gradients, and Prodigy has one step size for all. So what a first step
computes is followed from each parameter and its gradient, and what depends on several is rejected.

Not seen: a rank that holds one parameter alone, and later steps that combine more than the first.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import zip_longest
from types import MethodType
from typing import Any

from torch import Tensor
from torch.amp import GradScaler
from torch.optim import LBFGS, Optimizer
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from ...compat.of_torch import local_shard, tensor_leaves, unscaling_within
from ...compat.patching import replaced
from ...errors import UserError
from .remote import works_in_place

Lists = Sequence[list[Tensor]]
"""Parameters by group."""
READS = ("item", "tolist", "numpy", "__float__")
OVERWRITES = ("copy_", "zero_", "fill_")


def set_up_optimizers(
    optimizers: Iterable[Optimizer], scaler: GradScaler | None, until: ExitStack
) -> None:
    """Reject LBFGS, and keep the others from remote parameters, and so a gradient scaler.

    What they prepare beforehand, as Adagrad does, is dropped.
    """
    of_optimizers: dict[Optimizer, _Seen] = {}
    for optimizer in optimizers:
        if isinstance(optimizer, LBFGS):
            raise UserError(
                "strategy=pipeline: LBFGS updates a weight by the gradients of all others, of "
                "which a rank has only those of its layers; use another optimizer, such as AdamW, "
                "or strategy=ddp"
            )
        for parameter in [each for each in optimizer.state if each.is_meta]:
            del optimizer.state[parameter]
        of_optimizers[optimizer] = seen = _Seen(optimizer)
        until.callback(optimizer.register_step_pre_hook(seen.wrap_closure).remove)
        until.enter_context(replaced(optimizer, "step", seen.stepping()))
    if scaler is not None:
        until.enter_context(unscaling_within(scaler, lambda each: of_optimizers[each].held()))


class _Seen:
    """What an optimizer sees: within its step what this rank holds, in its closure everything."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        # PyTorch's own update each parameter by itself.
        self._is_known = type(optimizer).__module__.startswith("torch.")
        self._full: Lists = ()
        self._followed: FirstStep | None = None

    def stepping(self) -> Any:
        """The optimizer's `step`: a method still, or what a scheduler has put in its place."""
        step: Any = self._optimizer.step
        if function := getattr(step, "__func__", None):
            return MethodType(self._inside()(function), self._optimizer)
        return self._inside()(step)

    def wrap_closure(self, _: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """A hook before the step."""
        wrapped = [self._outside()(each) if callable(each) else each for each in args]
        named = {n: self._outside()(v) if callable(v) else v for n, v in options.items()}
        return tuple(wrapped), named

    @contextmanager
    def held(self) -> Iterator[Lists]:
        """Within the context, the groups list the parameters that this rank holds."""
        self._full = [group["params"] for group in self._optimizer.param_groups]
        held = [[each for each in group if not each.is_meta] for group in self._full]
        with self._showing(held):
            yield held

    @contextmanager
    def _inside(self) -> Iterator[None]:
        with self.held() as held:
            if self._is_known or held == self._full:
                yield
                return
            self._is_known = True
            self._followed = FirstStep(type(self._optimizer).__name__, held, self._full)
            with self._followed:
                yield
        self._followed = None

    @contextmanager
    def _outside(self) -> Iterator[None]:
        pause = replaced(self._followed, "is_outside", True) if self._followed else nullcontext()
        with self._showing(self._full), pause:
            yield

    @contextmanager
    def _showing(self, lists: Lists) -> Iterator[None]:
        groups = self._optimizer.param_groups
        before = [group["params"] for group in groups]
        _set(groups, lists)
        try:
            yield
        finally:
            _set(groups, before)


def _set(groups: list[dict[str, Any]], lists: Lists) -> None:
    for group, parameters in zip(groups, lists, strict=True):
        group["params"] = parameters


class FirstStep(TorchFunctionMode):
    """Follows numbers from the parameters to what is computed from them, but not in a closure."""

    is_outside = False

    def __init__(self, name: str, held: Lists, full: Lists) -> None:
        super().__init__()
        self._name = name
        # The parameters that a tensor is computed from: group, and place in the group.
        self._sources: Any = WeakTensorKeyDictionary()
        self._at = set()
        for group, parameters in enumerate(held):
            for place, parameter in enumerate(parameters):
                self._sources[parameter] = {(group, place)}
                self._at.add(local_shard(parameter).data_ptr())
        self._whole = [len(here) == len(there) for here, there in zip(held, full, strict=True)]
        # Those that Python has read a number of since it last updated one.
        self._read: set[Any] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        result = func(*args, **kwargs)
        if self.is_outside:
            return result
        if name in READS:
            self._read |= self._sources.get(args[0], set())
        elif name.startswith("_foreach_"):
            lists = [each for each in (*args, result) if isinstance(each, list | tuple)]
            single = [each for each in args if isinstance(each, Tensor)]
            for row in zip_longest(*lists):
                made = row[-1:] if isinstance(result, list | tuple) else ()
                self._follow(works_in_place(name), [*row, *single], made)
        else:
            used = args[1:] if name in OVERWRITES else args
            in_place = works_in_place(name) or name == "__setitem__"
            self._follow(in_place, [used, kwargs], [result], args[:1])
        return result

    def _follow(self, in_place: bool, used: Any, made: Any, first: Any = ()) -> None:
        sources = set[Any]().union(*(self._sources.get(each, ()) for each in tensor_leaves(used)))
        changed = tensor_leaves(first or used)[:1] if in_place else []
        for target in changed:
            if own := self._sources.get(target):
                self._check(own | self._read)
            if local_shard(target).data_ptr() in self._at:
                self._read = set()
        self._check(sources)
        for target in (*changed, *tensor_leaves(made)):
            self._sources[target] = sources

    def _check(self, sources: set[Any]) -> None:
        groups = {group for group, _ in sources}
        if len(sources) > 1 and (len(groups) > 1 or not self._whole[min(groups)]):
            raise UserError(
                f"strategy=pipeline: {self._name} combines gradients or weights of several "
                "parameters in its step, and another rank has some of them; use "
                "trainer.gradient_clip_val instead of a norm in the optimizer, another optimizer, "
                "such as AdamW, or strategy=ddp"
            )
