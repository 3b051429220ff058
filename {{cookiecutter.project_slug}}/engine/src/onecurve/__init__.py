"""One loss curve, every parallelism: strategies, checkpoints and runs for PyTorch Lightning."""
