"""Evaluate a checkpoint on the test set: ``python evaluate.py checkpoint=PATH``."""

from onecurve import app


@app.main(config="evaluate")
def evaluate(run: app.Run) -> None:
    """Runs in every rank: tests a checkpoint on the data that it was trained with."""
    trainer = run.trainer(callbacks=run.build(run.cfg.callbacks))
    task, data, _ = run.trained(trainer)
    trainer.test(task, datamodule=data, verbose=False)


if __name__ == "__main__":
    evaluate()
