"""Hand a trained network on: ``python export.py checkpoint=PATH format=onnx``."""

from onecurve import cli

if __name__ == "__main__":
    cli.export(__file__)
