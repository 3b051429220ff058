"""What a schedule of accumulation cannot go together with."""

from collections.abc import Iterator

from ..composed_run import ComposedRun


def refusals(run: ComposedRun, key: str) -> Iterator[str]:
    """Why the schedule is none, or what else sets the number of batches."""
    epochs = list(run.get(f"{key}.from_epochs", [0]))
    batches = list(run.get(f"{key}.batches", [1]))
    if not _is_schedule(epochs, batches):
        yield (
            f"{key}.from_epochs={epochs}: must be rising epochs from 0, with as many numbers from "
            f"1 in batches={batches}, such as '{key}.from_epochs=[0,4]' '{key}.batches=[1,2]'"
        )
    number = run.get("trainer.accumulate_grad_batches", 1)
    if number > 1:
        yield (
            f"trainer.accumulate_grad_batches={number}: callbacks=gradient_accumulation sets it "
            "from epoch to epoch; leave one of them out"
        )


def _is_schedule(epochs: list[int], batches: list[int]) -> bool:
    same_number = len(epochs) == len(batches)
    return same_number and epochs[:1] == [0] and epochs == sorted(set(epochs))
