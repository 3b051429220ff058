"""Mistakes about this project's data, networks and tasks get one line, and leave nothing behind."""

from pathlib import Path

import pytest
from conftest import shipped
from onecurve.testing.runs import Cli
from small_data import write_images

# What is typed, and what the line must say.
MISTAKES = {
    "data=image_folder": "data.root is needed",
    "data=image_folder data.root=nowhere": "data.root=nowhere: no such folder",
    "data=image_folder data.root=empty": "data.root=empty: no class folder",
    "data=image_folder data.root=bare": "no image in bare/dog",
    "data=image_folder data.root=few": "2 samples",
    "data=image_folder data.root=broken": "broken/cat/5.png",
    "data=image_folder data.root=broken data.in_memory=true": "broken/cat/5.png",
    "data=image_folder data.root=broken strategy=ddp": "broken/cat/5.png",
    "data=image_folder data.root=broken data.channels=2": "data.channels=2: must be 1, 3 or 4",
    "data=mnist": "use data=digits, which needs no download",
    "data=fashion_mnist strategy=ddp": "use data=digits, which needs no download",
    "data=mnist data.name=MNITS": "data.name=MNITS: must be one of MNIST",
    "model=lenet data.image_size=28": "data.image_size=32",
    "init=xavier model=resnet model.weights=DEFAULT": "init=default",
    "model=resnet model.weights=DEFAULT": "model.weights=null",
    "model=resnet model.weights=IMAGENET": "resnet18 has IMAGENET1K_V1",
    "model=resnet model.name=resnet81": "try resnet18",
    "model=resnet model.name=squeezenet1_0": "does not end in a linear layer",
    "model=resnet model.name=vit_b_16 model.small_images=true": "only for ResNets",
    "optimizer=adamw optimizer.betas=[2,0.9]": "optimizer.betas=[2,0.9]: must be a list, each",
    "optimizer.capturable=true optimizer=adamw trainer.accelerator=cpu": "capturable=false",
    "scheduler=step scheduler.step_size=0": "scheduler.step_size=0: must be a whole number from 1",
    "+optimizer.momentun=0.1 optimizer=sgd": "optimizer.momentun: torch.optim.SGD has no such",
    "+optimizer.lr_scale.c9=0.1 model=lenet": "optimizer.lr_scale.c9: no parameter's name begins",
    "optimizer.lr_scale.bakbone=0.1": "did you mean optimizer.lr_scale.backbone",  # says Hydra
    "optimizer.lr_scale.head=-1": "optimizer.lr_scale.head=-1: must be a factor",
    "scheduler=one_cycle trainer.max_epochs=-1": "scheduler=one_cycle: needs to know how long",
    "scheduler=cosine trainer.max_epochs=-1": "trainer.max_steps, or take scheduler=none",
    "scheduler.warmup=5": "scheduler.warmup=5: must be a number from 0 to 1",
}


def with_its_choices(typed: str) -> object:
    """Only where the files are there that it names."""
    files = [word.replace("=", "/") for word in typed.split() if "." not in word]
    return pytest.param(typed, marks=shipped(*files))


@pytest.mark.parametrize("typed", list(map(with_its_choices, MISTAKES)))
def test_a_mistake_gets_one_line_and_leaves_nothing(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    (tmp_path / "empty").mkdir()
    for root, count in {"few": (1, 1), "bare": (3, 0), "broken": (10, 10)}.items():
        for name, number in zip(("cat", "dog"), count, strict=True):
            write_images(tmp_path / root / name, number)
    (tmp_path / "broken/cat/5.png").write_bytes(b"not an image")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path.with_name(f"{tmp_path.name}-torch")))
    # A proxy that nobody listens to: no network, on any machine.
    proxy = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9") | {"no_proxy": ""}
    for variable in (*proxy, *map(str.upper, proxy)):
        monkeypatch.setenv(variable, proxy[variable.lower()])
    before, outcome = set(tmp_path.rglob("*")), cli("train.py", *typed.split())
    assert outcome.status == (1 if "did you mean" in MISTAKES[typed] else 2), outcome.err
    assert len(outcome.err.splitlines()) == 1, outcome.err
    assert MISTAKES[typed] in outcome.err
    assert set(tmp_path.rglob("*")) == before
