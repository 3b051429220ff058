"""Models of the arguments of this project's classes, validated before torch is imported.

A class without a model here validates its arguments when it is built.
"""

from typing import Annotated, Literal

from onecurve import Config
from pydantic import Field

Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(gt=0, lt=1)]


class Table(Config):
    features: list[str]
    target: str
    batch_size: Count
    val_fraction: Fraction
    test_fraction: Fraction
    split_seed: int


class CsvTable(Table):
    root: str


class Perceptron(Config):
    in_features: int
    hidden: list[Count]


class Regression(Config):
    in_features: Count
    monitor: str
    mode: Literal["min", "max"]


MODELS = {
    "data.csv_table.CsvTable": CsvTable,
    "data.diabetes.Diabetes": Table,
    "models.mlp.mlp": Perceptron,
    "tasks.regression.Regression": Regression,
}
