"""Evaluate a checkpoint on the test set: ``python evaluate.py checkpoint=PATH``."""

try:
    from onecurve import app
except ModuleNotFoundError as error:
    raise SystemExit(
        f"error: {error.name} is not installed in this Python; type `make setup`, then "
        "`source .venv/bin/activate` (or `uv run`)"
    ) from None


@app.main(config="evaluate")
def evaluate(run: app.Run) -> None:
    """Runs in every rank: tests a checkpoint on the data that it was trained with."""
    trainer = run.trainer(callbacks=run.build(run.cfg.callbacks))
    task, data, _ = run.trained(trainer)
    trainer.test(task, datamodule=data, verbose=False)


if __name__ == "__main__":
    evaluate()
