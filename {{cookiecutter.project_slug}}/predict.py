"""Use what was trained: ``python predict.py checkpoint=PATH``."""

from onecurve import cli

if __name__ == "__main__":
    cli.predict(__file__)
