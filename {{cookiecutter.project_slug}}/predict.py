"""Predict with a checkpoint: ``python predict.py checkpoint=PATH``."""

try:
    from onecurve import app
except ModuleNotFoundError as error:
    raise SystemExit(
        f"error: {error.name} is not installed in this Python; type `make setup`, then "
        "`source .venv/bin/activate` (or `uv run`)"
    ) from None


@app.main(config="predict")
def predict(run: app.Run) -> None:
    """Runs in every rank: writes what a trained task predicts for every sample."""
    writer = run.prediction_writer()
    trainer = run.trainer(callbacks=[*run.build(run.cfg.callbacks), writer])
    task, data, _ = run.trained(trainer)
    if not writer.task_wrote(trainer, task, data):  # by a method `predict`, such as generated text
        trainer.predict(task, **writer.samples(task, data), return_predictions=False)


if __name__ == "__main__":
    predict()
