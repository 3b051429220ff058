"""Whether a strategy trains as a plain Trainer does: ``python parity.py strategy=fsdp``."""

from onecurve import cli

if __name__ == "__main__":
    cli.parity(__file__)
