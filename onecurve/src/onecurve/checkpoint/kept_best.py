"""Which best checkpoints a resumed run keeps: its own, wherever its directory lies now."""

from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from .address import is_address


def keep_best(checkpoint: dict[str, Any], trainer: Trainer) -> list[str]:
    """Make the states of a Trainer's ModelCheckpoints those of this run, before they are loaded.

    A run that is resumed in its own directory keeps its best checkpoints, under the paths that they
    have now. A new run that starts from the checkpoint of another has none yet.

    Args:
        checkpoint: Lightning's dictionary.
        trainer: It knows which file is resumed, and its `default_root_dir` is the run directory.

    Returns:
        Where the best is searched for from now on, a line for each callback.
    """
    states = checkpoint.get("callbacks") or {}
    callbacks = [each for each in trainer.checkpoint_callbacks if isinstance(each, ModelCheckpoint)]
    own = {each.state_key for each in callbacks}
    others = [key for key in states if key not in own]
    said = []
    for callback in callbacks:
        key = callback.state_key
        if key not in states:  # it names when to save, too, which may have been changed
            key = next((each for each in others if _watched(each) == _watched(key)), key)
        if key not in states:
            continue
        state = states.pop(key)
        best, score = state["best_model_path"], state["best_model_score"]
        was = best if score is None else f"{callback.monitor} {float(score):.4g} in {best}"
        if _is_in_place(trainer, callback):
            # The first rank wrote the files and knows.
            here = trainer.strategy.broadcast(_as_here(state, callback))
            states[callback.state_key] = here
            if best and not here["best_model_path"]:
                said.append(f"the best so far is gone ({was}): the best is found from here on")
        elif best:
            said.append(
                f"a new run, whose best checkpoint is found from here on; the run before had {was}"
            )
    return said


def _watched(key: str) -> str:
    """Metric and mode out of the key of a ModelCheckpoint's state, or of a subclass's."""
    return key.partition("{")[2].partition(", 'every_n_train_steps'")[0]


def _is_in_place(trainer: Trainer, callback: ModelCheckpoint) -> bool:
    resumed = Path(str(trainer.ckpt_path)).resolve()
    folders = (trainer.default_root_dir, str(callback.dirpath))
    return any(resumed.is_relative_to(Path(folder).resolve()) for folder in folders)


def _as_here(state: dict[str, Any], callback: ModelCheckpoint) -> dict[str, Any]:
    """A state with the paths that its files have here, and without files that are gone."""

    def here(path: str) -> str:
        if is_address(path):
            return path
        if path and Path(path).is_relative_to(state["dirpath"]):
            moved = Path(str(callback.dirpath)) / Path(path).relative_to(state["dirpath"])
            path = str(moved) if moved.exists() else path
        return path if Path(path).exists() else ""

    models = {here(path): score for path, score in state["best_k_models"].items()}
    models.pop("", None)
    best_of, worst_of = (min, max) if callback.mode == "min" else (max, min)
    # Fewer may be kept now.
    while 0 < callback.save_top_k < len(models):
        del models[worst_of(models, key=lambda path: models[path])]
    best = worst = ""
    if models:
        best, worst = (of(models, key=lambda path: models[path]) for of in (best_of, worst_of))
    return {
        **state,
        "dirpath": callback.dirpath,
        "last_model_path": here(state["last_model_path"]),
        "best_k_models": models,
        "best_model_path": best if callback.monitor else here(state["best_model_path"]),
        "best_model_score": models.get(best),
        "kth_best_model_path": worst,
        "kth_value": models.get(worst, state["kth_value"]),
    }
