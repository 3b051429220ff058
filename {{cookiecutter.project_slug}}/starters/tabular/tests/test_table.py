"""Tables: what they hold, what the network makes of their units, and what it is compared with."""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TWO_STEPS, composed
from hydra.utils import instantiate
from onecurve.testing.runs import Cli, column
from small_data import write_houses

LINEAR = ("model.hidden=[]", "optimizer=sgd", "optimizer.lr=0.1", "scheduler=none")


def load(*overrides: str) -> Any:
    module: Any = instantiate(composed(*overrides).data)
    module.setup("fit")
    return module


def sizes(module: Any) -> list[int]:
    return [len(module.rows(part)[1]) for part in ("train", "val", "test")]


def test_diabetes_is_that_of_scikit_learn_and_split_the_same_way_each_time() -> None:
    from sklearn.datasets import load_diabetes

    first, again = load("data=diabetes"), load("data=diabetes", "seed=7")
    assert sizes(first) == [266, 88, 88]
    assert torch.equal(first.rows("test")[1], again.rows("test")[1])
    parts = [first.rows(part) for part in ("train", "val", "test")]
    rows = torch.cat([torch.cat([x, y[:, None]], dim=1) for x, y in parts])
    expected = load_diabetes(scaled=False)
    assert expected.feature_names == first.features
    whole = torch.tensor(expected.data).float().tolist()
    assert sorted(rows.tolist()) == sorted(
        [*row, target] for row, target in zip(whole, expected.target, strict=True)
    )


def test_a_table_of_ones_own_and_of_fewer_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_houses(tmp_path)
    mine = ("data=csv", "data.root=houses.csv", "data.target=price")
    module = load(*mine)
    assert (module.features, sizes(module)) == (["area", "rooms"], [60, 20, 20])
    features, targets = module.rows("train")
    assert torch.equal(targets, features[:, 0] * 3000 + features[:, 1] * 10000)
    fewer = load(*mine, "data.features=[rooms]")
    assert torch.equal(fewer.rows("train")[0], features[:, 1:])


def test_units_are_those_of_the_table(cli: Cli, tmp_path: Path) -> None:
    """A linear network learns a linear table, and a checkpoint answers in the target's units."""
    from {{ cookiecutter.package_name }}.tasks.regression import Regression

    write_houses(tmp_path)
    mine = ("data=csv", "data.root=houses.csv", "data.target=price", "data.batch_size=20")
    outcome = cli("train.py", *mine, *LINEAR, "trainer.precision=64-true")
    assert outcome.status == 0, outcome.err
    metrics = outcome.metrics
    assert metrics["test/r2"] > 0.999
    assert metrics["test/mae"] < 3000
    assert metrics["test/r2_of_least_squares"] == pytest.approx(1)
    assert metrics["test/mae_of_least_squares"] == pytest.approx(0, abs=1e-3)
    assert metrics["test/mae_of_mean"] > 10000
    task = Regression.load_from_checkpoint(outcome.run / "checkpoints/best.ckpt").eval()
    rows = torch.tensor([[70.0, 3.0], [100.0, 5.0]])
    predicted = task.float().predict_step((rows, None), 0)["prediction"]
    assert predicted.tolist() == pytest.approx([240_000, 350_000], rel=0.03)
    # Rows without a target, of which there may be a single one.
    (tmp_path / "more.csv").write_text("rooms,area\n3,70\n")
    checkpoint = f"checkpoint={outcome.run / 'checkpoints/best.ckpt'}"
    made = cli("predict.py", checkpoint, "data.root=more.csv", "trainer.precision=64-true")
    assert made.status == 0, made.err
    (row,) = csv.DictReader((made.run / "predictions.csv").open())
    assert float(row["prediction"]) == pytest.approx(predicted[0].item(), rel=1e-5)
    refused = cli("evaluate.py", checkpoint, "data.root=more.csv")
    assert refused.status == 2
    assert "data.target=price: these rows have no such column" in refused.err
    # A target in thousands: the same loss, and an error of a thousandth.
    lines = list(csv.reader((tmp_path / "houses.csv").open()))
    table = [lines[0], *([area, rooms, int(price) / 1000] for area, rooms, price in lines[1:])]
    with (tmp_path / "thousands.csv").open("w", newline="") as file:
        csv.writer(file).writerows(table)
    mine = ("data=csv", "data.root=thousands.csv", "data.target=price", "data.batch_size=20")
    other = cli("train.py", *mine, *LINEAR, "trainer.precision=64-true")
    assert column(other.run, "train/loss") == pytest.approx(column(outcome.run, "train/loss"))
    assert other.metrics["val/mae"] == pytest.approx(metrics["val/mae"] / 1000)


def test_a_checkpoint_makes_the_task_again(once: Any) -> None:
    """`load_from_checkpoint` as of any LightningModule, and the loss that was logged."""
    from {{ cookiecutter.package_name }}.tasks.regression import Regression

    run = once(*TWO_STEPS, "task=regression")
    task = Regression.load_from_checkpoint(run / "checkpoints/last.ckpt").eval()
    batch = next(iter(load("data.batch_size=8").val_dataloader()))
    # float32, as the run
    logged = column(run, "val/loss")[-1]
    assert task.loss(*task.answer(batch)).item() == pytest.approx(logged, rel=1e-5)


def test_the_experiment_reaches_what_it_says(cli: Cli) -> None:
    outcome = cli("train.py", "experiment=mlp_diabetes", "logger=csv", "callbacks=[checkpoint]")
    assert outcome.status == 0, outcome.err
    metrics = outcome.metrics
    assert metrics["test/r2"] > 0.55 > 0.05 > metrics["test/r2_of_mean"]
    assert metrics["test/mae"] < 46 < 65 < metrics["test/mae_of_mean"]
    assert metrics["test/r2"] > metrics["test/r2_of_least_squares"] - 0.02
