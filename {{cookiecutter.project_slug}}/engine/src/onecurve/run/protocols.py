"""What a run asks of callbacks beside Lightning's hooks. To have the attribute is to take part."""

from typing import Protocol, runtime_checkable


@runtime_checkable
class HasFinalFacts(Protocol):
    """A callback that has something to say of the whole run.

    Attributes:
        final_facts: Numbers by name, for metrics.json and the table at the end; read after the
            final test.
    """

    final_facts: dict[str, float]


@runtime_checkable
class HasFinalWeights(Protocol):
    """A callback that makes the weights to keep, as stochastic weight averaging does.

    Attributes:
        final_weights: The checkpoint that the final test takes instead of the best one; None if
            there is none.
    """

    final_weights: str | None
