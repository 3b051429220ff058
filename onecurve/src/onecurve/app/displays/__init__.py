"""What a run looks like in TensorBoard and in Weights & Biases."""
