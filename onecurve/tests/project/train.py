"""Train a model: ``python train.py strategy=ddp optimizer.lr=0.01``. See ``--help`` for more."""

from onecurve import app


@app.main(config="train")
def train(run: app.Run) -> None:
    """Runs in every rank: an ordinary Lightning script. Change it as you like."""
    cfg = run.cfg
    data, task = run.build(cfg.data), run.build(cfg.task)
    trainer = run.trainer(callbacks=run.build(cfg.callbacks), logger=run.build(cfg.logger))
    trainer.fit(task, datamodule=data, ckpt_path=run.resume)
    if cfg.test:
        trainer.test(task, datamodule=data, ckpt_path=run.best, verbose=False)


if __name__ == "__main__":
    train()
