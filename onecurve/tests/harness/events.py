"""What TensorBoard reads of a run."""

from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.metadata import parse_session_start_info_plugin_data


class Events:
    """The events in the one folder of a run, all of them."""

    def __init__(self, run: Path) -> None:
        (self.folder,) = (run / "tensorboard").iterdir()
        everything = dict.fromkeys(("scalars", "images", "histograms", "tensors"), 0)
        self.read = EventAccumulator(str(self.folder), size_guidance=everything)
        self.read.Reload()
        self.tags = self.read.Tags()

    def scalars(self, name: str) -> list[float]:
        return [event.value for event in self.read.Scalars(name)]

    def steps(self, name: str) -> list[int]:
        (kind,) = (kind for kind in ("scalars", "images", "tensors") if name in self.tags[kind])
        return [event.step for event in getattr(self.read, kind.title())(name)]

    def hparams(self) -> dict[str, Any]:
        content = self.read.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
        start = parse_session_start_info_plugin_data(content)
        return {
            key: value.string_value or value.number_value for key, value in start.hparams.items()
        }
