"""How long each layer of a mesh takes for a micro-batch, with what its groups tell each other."""

from collections.abc import Sequence

from ..strategies.mesh.sizes import Sizes
from .layer_passes import BATCH, Passes
from .links import Message, gather, group_of, reduce
from .rates import seconds
from .request import Request


class LayerTimes:
    """Seconds of the passes of layers.

    Args:
        request: What is planned.
        sizes: Of the mesh.
        chain: The layers' passes, and that of the loss.
        samples: Of a micro-batch.
    """

    def __init__(
        self, request: Request, sizes: Sizes, chain: Sequence[Passes], samples: float
    ) -> None:
        self.request = request
        self.chain = chain
        self.samples = samples
        self.groups = {axis: group_of(sizes, axis, request.per_node) for axis in AXES}
        self._known: dict[tuple[int, int], tuple[float, dict[str, Message]]] = {}

    def forward(self, layer: int) -> float:
        """Of a layer's forward pass."""
        return self._of(layer, 0)[0]

    def backward(self, layer: int) -> float:
        """Of a layer's backward pass."""
        return self._of(layer, 1)[0]

    def sent(self, axis: str, layers: Sequence[int], times: int) -> Message:
        """What a rank with some layers sends along an axis in so many micro-batches."""
        total = Message()
        for layer in layers:
            for direction in (0, 1):
                total = total.plus(self._of(layer, direction)[1][axis], times)
        return total

    def _of(self, layer: int, direction: int) -> tuple[float, dict[str, Message]]:
        passes = self.chain[layer]
        key = (id(passes), direction)
        if key not in self._known:
            work = passes.backward if direction else passes.forward
            busy = seconds(work, self.samples, self.request.hardware) * self.request.crowd
            network = self.request.network
            if layer < len(network.kinds):
                busy *= network.factors.get(network.kinds[layer], (1.0, 1.0))[direction]
            messages = self._messages(passes, direction)
            self._known[key] = (busy + sum(each.seconds for each in messages.values()), messages)
        return self._known[key]

    def _messages(self, passes: Passes, direction: int) -> dict[str, Message]:
        """A collective takes its latency each time that there is one."""
        hardware, sent = self.request.hardware, passes.sent
        scale = self.samples / BATCH
        found = {axis: Message() for axis in AXES}
        group = self.groups["tensor"]
        calls = sent.calls[direction]
        if group.size > 1 and calls:
            reduced = reduce(sent.reduced[direction] * scale, group, hardware)
            gathered = gather(sent.gathered[direction] * scale, group, hardware)
            message = reduced.plus(gathered if sent.gathered[direction] else Message())
            late = 2 * hardware.latency * group.nodes * (calls - 1)
            found["tensor"] = message.plus(Message(seconds=late))
        group = self.groups["context"]
        if group.size > 1 and sent.keys:
            found["context"] = gather(sent.keys * scale, group, hardware)
        return found


AXES = ("tensor", "context")
