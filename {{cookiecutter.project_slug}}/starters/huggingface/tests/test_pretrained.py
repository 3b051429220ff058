"""Models that `from_pretrained` reads: a loaded model trains, and a saved model can be loaded."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TWO_STEPS
from onecurve.testing.runs import Cli, column
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

SAVES = ("callbacks=[checkpoint,save_pretrained]", "logger=csv")
LLAMA = ("model=pretrained", "model.name=pretrained")


def saved(run: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(run / "pretrained").state_dict()


def in_checkpoint(run: Path, name: str = "best") -> dict[str, torch.Tensor]:
    state = torch.load(run / f"checkpoints/{name}.ckpt", weights_only=True)["state_dict"]
    return {key.removeprefix("network."): value for key, value in state.items()}


@pytest.mark.parametrize(
    ("model", "strategy"),
    [("llama_tiny", "fsdp"), ("llama_tiny", "tensor"), ("gpt2_tiny", "pipeline")],
)
def test_a_folder_has_the_best_weights_in_full(once: Any, model: str, strategy: str) -> None:
    run = once(*TWO_STEPS, *SAVES, f"model={model}", f"strategy={strategy}")
    weights, best = saved(run), in_checkpoint(run)
    assert weights.keys() == best.keys()
    assert all(torch.equal(weights[name], best[name]) for name in best)
    assert len(AutoTokenizer.from_pretrained(run / "pretrained")) == 1024


@pytest.mark.usefixtures("small_data")
def test_what_was_saved_is_trained_further(cli: Cli) -> None:
    """From a folder, with its own tokenizer; the worse weights of a resumed run are not saved."""
    first = cli("train.py", *TWO_STEPS, *SAVES, *LLAMA)
    assert first.status == 0, first.err
    assert "eval mode" not in first.err  # or dropout would be left out
    assert len(AutoTokenizer.from_pretrained(first.run / "pretrained")) == 300
    name = f"model.name={first.run}/pretrained"
    second = cli("train.py", *TWO_STEPS, "model=pretrained", name, "optimizer.lr=1e-12")
    losses = [column(outcome.run, "val/loss")[-1] for outcome in (first, second)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    before = saved(first.run)
    resumed = cli("train.py", f"resume={first.run}", "trainer.max_epochs=2", "optimizer.lr=10")
    assert resumed.status == 0, resumed.err
    assert column(first.run, "val/loss")[-1] > losses[0]
    assert all(torch.equal(before[name], value) for name, value in saved(first.run).items())
    last = in_checkpoint(first.run, "last")
    assert not torch.equal(last["lm_head.weight"], before["lm_head.weight"])
    assert "model.name=a/b/c: cannot be" in cli("train.py", LLAMA[0], "model.name=a/b/c").err


@pytest.mark.usefixtures("small_data")
@pytest.mark.parametrize(("strategy", "targets"), [("single", "all-linear"), ("fsdp", "null")])
def test_lora_trains_its_matrices_alone(cli: Cli, strategy: str, targets: str) -> None:
    typed = (*TWO_STEPS, *LLAMA, "model.lora=2", f"model.lora_targets={targets}")
    outcome = cli("train.py", *typed, *SAVES, f"strategy={strategy}")
    assert outcome.status == 0, outcome.err
    base = AutoModelForCausalLM.from_pretrained("pretrained").state_dict()
    trained = in_checkpoint(outcome.run)
    assert any("down_proj.lora_A" in name for name in trained) == (targets == "all-linear")
    kept = [name for name in trained if "lora" not in name]
    assert len(kept) == len(base)
    for name in kept:
        plain = name.removeprefix("base_model.model.").replace("base_layer.", "")
        assert torch.equal(trained[name], base[plain]), name
    matrices = [value for name, value in trained.items() if "lora_B" in name]
    assert matrices
    assert all(value.any() for value in matrices)
    files = {path.name for path in (outcome.run / "pretrained").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= files
    adapted = AutoModelForCausalLM.from_pretrained(outcome.run / "pretrained")
    read = [value for name, value in adapted.named_parameters() if "lora_B" in name]
    assert sorted(value.norm() for value in read) == sorted(value.norm() for value in matrices)
    line = cli("train.py", LLAMA[0], f"model.name={outcome.run}/pretrained").err.splitlines()[-1]
    assert "adapter; use the model that it is for, model.name=pretrained model.lora=2, and" in line
    further = cli("train.py", *typed, f"init={outcome.run}/checkpoints/best.ckpt")
    assert "not in the file" not in further.out, further.out
    assert further.status == 0, further.err


@pytest.mark.usefixtures("small_data")
def test_a_classifier_knows_the_names_of_its_classes(cli: Cli) -> None:
    typed = ("experiment=snippets", "data.csv=two.csv", "data.labels=[no,yes]", *LLAMA)
    outcome = cli("train.py", *typed, *TWO_STEPS, *SAVES)
    assert outcome.status == 0, outcome.err
    model = AutoModelForSequenceClassification.from_pretrained(outcome.run / "pretrained")
    assert model.config.id2label == {0: "no", 1: "yes"}
    assert "error: model: bert sees the tokens" in cli("train.py", "model=bert_tiny").err
