"""What Optuna's study says about a search: which parameters mattered."""

import warnings
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .objectives import Objective

NOT_INSTALLED = (
    "How much each parameter mattered is not shown: Optuna is not installed "
    "(uv pip install -e '.[optuna]', then python report.py again)."
)


def importances(
    database: Path, objectives: list[Objective]
) -> tuple[dict[str, dict[str, float]], str]:
    """How much each parameter of a search mattered.

    Args:
        database: study.db of a sweep.
        objectives: What was searched for.

    Returns:
        For each objective the parameters with their shares, which sum to one; and a sentence
        that says why there is none, or nothing.
    """
    try:
        import optuna
    except ImportError:
        return {}, NOT_INSTALLED
    found: dict[str, dict[str, float]] = {}
    # A study may be too small, or of a version that this Optuna cannot read: no reason to fail.
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            storage = _storage(optuna, database)
            name = optuna.get_all_study_names(storage)[0]
            study = optuna.load_study(study_name=name, storage=storage)
            for index in range(len(study.directions)):
                name = objectives[index].name if index < len(objectives) else f"objective {index}"
                found[name] = _of_one(optuna, study, index)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        return {}, f"How much each parameter mattered cannot be computed: {reason}"
    return {name: shares for name, shares in found.items() if shares}, ""


def _of_one(optuna: Any, study: Any, index: int) -> dict[str, float]:
    def target(trial: Any) -> float:
        return float(trial.values[index])

    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    shares = optuna.importance.get_param_importances(study, evaluator=evaluator, target=target)
    return {str(name): float(share) for name, share in shares.items()}


def _storage(optuna: Any, database: Path) -> Any:
    # Opened for reading only: the sweep may still be running.
    address = f"sqlite:///file:{quote(str(database.resolve()))}?mode=ro&uri=true"
    return optuna.storages.RDBStorage(address)
