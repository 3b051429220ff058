"""Report on sweeps: ``python report.py SWEEP_DIR...``."""

from onecurve import cli

if __name__ == "__main__":
    cli.report()
