"""Train a model: ``python train.py strategy=ddp optimizer.lr=0.01``. See ``--help`` for more."""

from onecurve import cli

if __name__ == "__main__":
    cli.train(__file__)
