"""Which mesh to take: ``python plan.py trainer.devices=64 plan.gpu=h100``."""

from onecurve import cli

if __name__ == "__main__":
    cli.plan(__file__)
