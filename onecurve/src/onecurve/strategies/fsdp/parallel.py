"""`strategy=fsdp`, and FSDP2 as an axis of a mesh: every rank holds a shard of each parameter.

A unit (`sharding.py`) gathers its parameters for its forward pass and again for its backward pass,
and then averages gradients into shards. Parameters without a dimension are not sharded.

Exact: the loss curve of `single`, to float tolerance, at every world size, with accumulation,
clipping, frozen layers, tied weights, replicas, an uneven last batch, and BatchNorm with
`trainer.sync_batchnorm=true` (else it has the statistics of each rank's share, and evaluation those
of rank 0). Not exact: dropout (each rank draws its own masks), bf16-mixed and 16-mixed (all
parameters but those of BatchNorm are rounded to 16 bits, also where autocast alone would compute in
32).
Not for sparse gradients, LBFGS and Adafactor: PyTorch raises an error, of which a line is made. Nor
for complex parameters with other optimizers than SGD, nor for parameters that only some ranks use.
Memory per rank: parameters, gradients and optimizer state divided by the number of ranks that share
them, plus about two full units at a time. Gradients are averaged after each accumulated batch, too:
this sends more, but no rank ever holds a full gradient.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ...arguments import configured_by
from ...compat.of_lightning import callbacks_of
from ...compat.of_torch import (
    at_end_of_backward,
    begin_backward,
    reduce_late_gradients,
    tree_leaves,
)
from ...compat.patches import replaced
from ...torch_versions import require
from ..collectives import with_hook
from ..differences import TrainedParameters
from ..full_parameters import sharded_data
from ..layout import Part
from ..mesh.sizes import Sizes
from ..options import FSDPOptions, ShardOptions
from ..parallelism import Applied, Parallelism, Setting, State
from ..step import StepContext
from ..strategy import OneCurve
from ..unsupported import (
    reject_hooks,
    reject_of_shards,
    reject_optimizers,
    reject_scalars,
)
from .sharding import (
    STAYS_GATHERED,
    Sharding,
    average_scalars,
    before_backward,
    check_methods,
    check_wrap,
    freed_after_inference,
    reshard,
    set_plain_factories,
    steps_as_forward,
    trains,
)
from .state import gather


class ShardedParameters(Parallelism):
    """Shards every parameter that a rank holds."""

    follows_compile = True

    def __init__(self, options: ShardOptions) -> None:
        self.options = options
        self.offloads = options.cpu_offload

    def is_needed(self, sizes: Sizes) -> bool:
        """Pipeline stages that one rank holds alone are not sharded."""
        return sizes.pipeline == 1 or sizes.shares_layers

    def plan(self, task: LightningModule, parts: list[Part], setting: Setting) -> list[Part]:
        """Reject what cannot be sharded."""
        check_wrap(task, self.options.wrap)
        check_methods(task, self.options.forward_methods)
        if task.trainer.state.fn == TrainerFn.FITTING:
            reject_hooks(task, setting.name)
        has_own = next(task.parameters(recurse=False), None) is not None
        if has_own and not task.automatic_optimization:
            require("manual_backward with sharded parameters of the task itself")
        return parts

    def apply(self, task: LightningModule, parts: list[Part], setting: Setting) -> Applied:
        """Shard the parameters of each part; its backward pass averages the gradients."""
        ranks, sizes = setting.ranks, setting.ranks.sizes
        mesh = ranks.mesh["replicate", "shard"] if sizes.replicate > 1 else ranks.mesh["shard"]
        for part in parts:
            if sizes.pipeline * sizes.context > 1:
                reject_scalars(part.root, setting.name)
            Sharding(self.options).apply(part.root, mesh, setting.precision)
            if sizes.data_parallel > 1:
                average_scalars(part.root, ranks.samples_group)
            if part.root is task:
                # For calls outside of steps, by callbacks.
                task.register_forward_hook(freed_after_inference)
        steps = ShardedSteps(setting)
        return Applied(
            around=steps.run,
            backward=steps.backward,
            state=Shards(ranks.rank == 0),
            connected=steps.connected,
            optimizers=reject_optimizers,
            moves=lambda tensor: not (self.offloads and isinstance(tensor, DTensor)),
        )


class ShardedSteps:
    """The steps of a task whose parameters are shards."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._units: list[Any] = []
        # Units that are trained when the fit begins.
        self._trained: set[Any] = set()
        # Units that FSDP2 would not gather for a backward pass of the current step.
        self._unseen: set[Any] = set()
        # None if all ranks see the same samples, or stages compute the gradients.
        self._compared: TrainedParameters | None = None

    @contextmanager
    def connected(self, task: LightningModule) -> Iterator[None]:
        """Replace calls of the network for the length of a fit or an evaluation."""
        self._units = [part for part in task.modules() if isinstance(part, FSDPModule)]
        self._trained = {unit for unit in self._units if unit is not task and trains(unit)}
        ranks = self._setting.ranks
        if ranks.sizes.data_parallel > 1 and ranks.sizes.pipeline == 1:
            self._compared = TrainedParameters(task, self._setting.name, ranks)
        # Between the forward and the backward pass, where gathered parameters have no gradients.
        self._zeroing_is_watched = is_overridden("optimizer_zero_grad", task) or any(
            is_overridden("on_before_zero_grad", each)
            for each in (task, *callbacks_of(task.trainer, Callback))
        )
        with ExitStack() as stack:
            stack.enter_context(sharded_data(self._setting.name))
            if self._setting.ranks.sizes.pipeline == 1:  # else the stages call the layers
                set_plain_factories(task)
                stack.enter_context(steps_as_forward(task))
            for unit in self._units:
                stack.callback(unit.register_forward_hook(self._watch_outputs).remove)
            for unit in self._trained:
                stack.callback(unit.register_forward_hook(self._free_frozen).remove)
            yield

    def run(self, task: LightningModule, context: StepContext, step: Callable[[], Any]) -> Any:
        """Run a step of the task, whose own parameters stay gathered until it ends."""
        self._free_unseen()
        self._unseen.clear()
        with replaced(task, STAYS_GATHERED, True):
            output = step()
        if context.name != "training_step" or output is None or self._zeroing_is_watched:
            reshard(task)
        reject_of_shards(task, output, self._setting.name)
        return output

    def backward(self, task: LightningModule, loss: Tensor) -> Tensor:
        """Let FSDP2 know about a loss with manual optimization, which no step returns."""
        if not task.automatic_optimization and isinstance(task, FSDPModule):
            loss = before_backward(task, loss)
        # The hook of what is made last runs first, so this is done before FSDP2 ends the pass.
        return with_hook(loss, self._backward_begins)

    def _watch_outputs(self, unit: Any, _: Any, output: Any) -> None:
        """Note a unit whose outputs FSDP2 does not find, or is done with; a forward hook.

        It looks for them in pytrees alone, not in a Distribution or another object. And once it has
        passed a gradient that is part of a loss, it would free the weights that the loss needs.
        """

        def passes(_: Tensor) -> None:
            if torch.is_grad_enabled():  # create_graph=True
                unit.set_reshard_after_backward(False, recurse=False)
                self._unseen.add(unit)

        for leaf in tree_leaves(output) if torch.is_grad_enabled() else ():
            if not isinstance(leaf, Tensor):
                self._unseen |= {unit} if hasattr(leaf, "__dict__") else set()
            elif leaf.requires_grad and not torch.compiler.is_compiling():
                leaf.register_hook(passes)  # type: ignore[no-untyped-call]

    def _free_unseen(self) -> None:
        for unit in self._unseen:
            unit.set_reshard_after_backward(True, recurse=False)
            unit.reshard()

    def _free_frozen(self, unit: Any, *_: Any) -> None:
        """Free a unit that a step has frozen for a while, or calls as a teacher; a forward hook.

        As Lightning's `toggle_optimizer`, or a GAN that freezes its critic. If the unit stayed
        gathered, the step would unfreeze or change the copies, and what is sharded would stay.
        """
        if not torch.is_grad_enabled() or not trains(unit):
            unit.reshard()

    def _backward_begins(self, _: Tensor) -> None:
        at_end_of_backward(self._reduce_late)
        if self._compared is not None:
            self._compared.begin()
        for unit in self._units:  # in the same order on all ranks
            if unit in self._unseen:
                begin_backward(unit)

    def _reduce_late(self) -> None:
        for unit in self._units:
            reduce_late_gradients(unit)
        # Once FSDP2 has ended the pass.
        at_end_of_backward(self._free_unseen)
        if self._compared is not None:
            at_end_of_backward(self._compared.end)


class Shards(State):
    """The state of a network of which every rank holds shards."""

    def __init__(self, keeps: bool) -> None:
        self._keeps = keeps

    def full_state(self, task: LightningModule) -> dict[str, Any]:
        return self._gathered(task.state_dict())

    def full_optimizer_state(self, task: LightningModule, optimizer: Optimizer) -> dict[str, Any]:
        return self._gathered(optimizer.state_dict())

    def iter_full_tensors(
        self, task: LightningModule, tensors: Mapping[str, Tensor]
    ) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in tensors.items():
            yield from self._gathered({name: tensor}).items()

    def _gathered(self, state: dict[str, Any]) -> dict[str, Any]:
        gathered: dict[str, Any] = gather(state, self._keeps)
        return gathered


class FSDP(OneCurve, DDPStrategy):
    """Fully sharded data parallelism for an ordinary LightningModule.

    Lightning's own ModelParallelStrategy needs a module that shards itself in `configure_model`,
    and supports few precisions. The arguments are described in `FSDPOptions`.
    """

    name = "fsdp"

    @configured_by(FSDPOptions, "strategy")
    def __init__(self, options: FSDPOptions) -> None:
        super().__init__(
            options,
            {"replicate": options.replicas, "shard": "auto"},
            [ShardedParameters(options)],
        )
