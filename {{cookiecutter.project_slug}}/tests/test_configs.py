"""Every configuration file is reached: each choice of each group trains two steps.

A new file under `configs/` needs a line in `CHOICES`; without one, a test here fails.
"""

from collections.abc import Callable, Iterator
from itertools import combinations, product
from pathlib import Path

import pytest
import torch
from conftest import ROOT, TINY, Cli
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf
from onecurve.command.resolvers import register_resolvers
from small_data import write_cifar10, write_images, write_mnist

CONFIGS = ROOT / "configs"
TWO_STEPS = (
    "trainer.max_epochs=1",
    "trainer.limit_train_batches=2",
    "trainer.limit_val_batches=1",
    "trainer.limit_test_batches=1",
    "data.batch_size=4",
)
SMALL = "data.val_size=10"
SMALL_RESNET = ("data=synthetic", "model.small_images=true")

# What each choice needs beside itself to train in a moment.
CHOICES: dict[str, dict[str, tuple[str, ...]]] = {
    "callbacks": dict.fromkeys(
        (
            "checkpoint",
            "device_stats",
            "early_stopping",
            "ema",
            "gradient_accumulation",
            "lr_monitor",
            "model_summary",
            "nan_guard",
            "none",
            "progress",
            "swa",
            "tensorboard",
            "throughput",
            "timer",
            "wandb",
        ),
        (),
    )
    | {
        "batch_size_finder": ("callbacks.batch_size_finder.largest=64",),
        "lr_finder": ("callbacks.lr_finder.steps=20",),
    },
    "data": {
        "cifar10": (SMALL,),
        "digits": (),
        "fashion_mnist": (SMALL,),
        "image_folder": ("data.root=photos",),
        "mnist": (SMALL,),
        "synthetic": ("data.channels=2", "data.image_size=9", "data.num_classes=3"),
    },
    "debug": dict.fromkeys(("fast_dev_run", "limit", "overfit", "profiler"), ()),
    "experiment": {
        "finetune_resnet": ("data.root=photos", "model.weights=null", "data.image_size=64"),
        "lenet_mnist": (SMALL,),
        "mlp_fashion_mnist": (SMALL,),
        "resnet_cifar10": (SMALL,),
    },
    "hydra": {"default": ()},
    "hydra/sweeper": {"optuna_study": ()},
    "init": dict.fromkeys(("default", "kaiming", "orthogonal", "xavier"), ())
    | {"weights": ("init.file=weights.pt",)},
    "launch": {"default": ()},
    "logger": dict.fromkeys(("csv", "tensorboard", "wandb"), ()),
    "model": {"lenet": ("data.image_size=32",), "mlp": (), "resnet": SMALL_RESNET},
    "optimizer": dict.fromkeys(("adam", "adamw", "rmsprop", "sgd"), ()),
    "paths": {"default": ()},
    "scheduler": dict.fromkeys(("cosine", "none", "one_cycle", "plateau", "step"), ()),
    "strategy": dict.fromkeys(("ddp", "dp", "fsdp", "pipeline", "single"), ()),
    "sweep": {"grid": (), "optuna": ()},
    "sweep/launcher": dict.fromkeys(("joblib", "local", "serial", "slurm"), ()),
    "sweep/pruner": dict.fromkeys(("hyperband", "median", "none"), ()),
    "sweep/sampler": dict.fromkeys(("cmaes", "grid", "nsgaii", "random", "tpe"), ()),
    "task": {"classification": ()},
    "trainer": {"default": (), "evaluate": ()},
}
STEPS = {"debug/fast_dev_run": 1, "debug/overfit": 3}
# Those that another script uses, or that every run above uses.
ELSEWHERE = {"trainer/evaluate", "hydra/default"}
# Groups that only `-m` reads: test_sweeps.py, test_launchers.py, test_search.py.
OF_SWEEPS = {"hydra/sweeper", "sweep", "sweep/launcher", "sweep/pruner", "sweep/sampler"}
PAIRS = [
    (f"{group}/{choice}", extras)
    for group, choices in CHOICES.items()
    for choice, extras in choices.items()
    if f"{group}/{choice}" not in ELSEWHERE and group not in OF_SWEEPS
]


def test_no_file_is_forgotten() -> None:
    files = {str(path.relative_to(CONFIGS).with_suffix("")) for path in CONFIGS.rglob("*.yaml")}
    listed = {f"{group}/{choice}" for group, choices in CHOICES.items() for choice in choices}
    machine = {"local/default"}
    assert files - machine == listed | {"train", "evaluate", "predict"}


def test_every_file_says_what_it_does() -> None:
    for path in CONFIGS.rglob("*.yaml"):
        lines = path.read_text().splitlines()
        assert lines[lines[0].startswith("# @package")].startswith("# "), path


@pytest.fixture
def small_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small sets where the runs look for the real ones."""
    write_mnist(tmp_path / "data/MNIST/raw")
    write_mnist(tmp_path / "data/FashionMNIST/raw")
    write_cifar10(tmp_path / "data", monkeypatch)
    for name in ("cat", "dog"):
        write_images(tmp_path / "photos" / name, 20)
    torch.save({"output.bias": torch.zeros(10)}, tmp_path / "weights.pt")


@pytest.mark.usefixtures("small_sets")
@pytest.mark.parametrize(("file", "extras"), PAIRS, ids=[file for file, _ in PAIRS])
def test_every_choice_trains_two_steps(cli: Cli, file: str, extras: tuple[str, ...]) -> None:
    group, choice = file.split("/")
    base = [] if group in ("experiment", "debug") else list(TINY)
    base = [override for override in base if not override.startswith(f"{group}=")]
    outcome = cli("train.py", *base, f"{group}={choice}", *TWO_STEPS, *extras)
    assert outcome.status == 0, outcome.err
    assert outcome.metrics["status"] == "finished"
    assert outcome.metrics["global_step"] == STEPS.get(file, 2)


def compositions(groups: dict[str, list[str]]) -> Iterator[dict[str, str]]:
    """Whole choices, one of each group, in which every two choices of two groups meet.

    Greedy: each group takes what meets most of the others for the first time.
    """
    sizes = {group: range(len(choices)) for group, choices in groups.items()}
    left = {
        frozenset([(a, i), (b, k)])
        for a, b in combinations(sizes, 2)
        for i, k in product(sizes[a], sizes[b])
    }
    while left:
        taken = dict(min(left, key=sorted))
        for group in groups.keys() - taken:
            new = [
                sum(frozenset([(group, i), other]) in left for other in taken.items())
                for i in sizes[group]
            ]
            taken[group] = new.index(max(new))
        left -= set(map(frozenset, combinations(taken.items(), 2)))
        yield {group: groups[group][i] for group, i in taken.items()}


def test_every_two_choices_compose_and_instantiate() -> None:
    """In compositions of all groups: every reference resolves and every class is built."""
    register_resolvers()
    groups = {
        group: sorted(choices)
        for group, choices in CHOICES.items()
        if group not in {"hydra", "experiment", "trainer", *OF_SWEEPS}
    }
    seen = set()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        for chosen in compositions(groups):
            # Callbacks and loggers are lists by default, so that is how one is chosen.
            several = ("callbacks", "logger")
            overrides = [
                f"{group}=[{choice}]" if group in several else f"{group}={choice}"
                for group, choice in chosen.items()
            ]
            if chosen["data"] == "image_folder":
                overrides += [f"data.root={ROOT}", "data.class_names=[a,b]"]
            config = compose("train", [*overrides, "paths.run=unused"])
            assert OmegaConf.to_container(config, resolve=True)
            for group, is_right in BUILT.items():
                assert is_right(instantiate(config[group])), (overrides, group)
            seen |= set(combinations(sorted(chosen.items()), 2))
    expected = {
        ((a, first), (b, second))
        for a, b in combinations(sorted(groups), 2)
        for first, second in product(groups[a], groups[b])
    }
    assert seen == expected


# What instantiating a group must give.
BUILT: dict[str, Callable[[object], bool]] = {
    "data": lambda value: hasattr(value, "train_dataloader"),
    "init": callable,
    "optimizer": callable,
    "scheduler": callable,
}
