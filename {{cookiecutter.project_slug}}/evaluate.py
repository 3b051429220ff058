"""Measure a checkpoint on the test set: ``python evaluate.py checkpoint=PATH``."""

from onecurve import cli

if __name__ == "__main__":
    cli.evaluate(__file__)
