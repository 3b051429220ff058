"""Text classification: the class of each text."""

from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy

from .fine_tuning import Batch, FineTuning


class TextClassification(FineTuning):
    """Trains an `AutoModelForSequenceClassification`."""

    metric = "acc"
    classifies = True

    def make_metric(self) -> Metric:
        """The share of texts that are classified correctly."""
        return MulticlassAccuracy(self.network.config.num_labels, average="micro")

    def measure(self, metric: Metric, logits: Tensor, labels: Tensor) -> None:
        """Compare logits (N, C) with classes (N,)."""
        metric.update(logits, labels)

    def predict_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """The most likely class of each text and its probability, as two columns for predict.py."""
        texts = {name: value for name, value in batch.items() if name != "labels"}
        probability, label = self.network(**texts).logits.softmax(-1).max(-1)
        return {"label": label, "probability": probability}
