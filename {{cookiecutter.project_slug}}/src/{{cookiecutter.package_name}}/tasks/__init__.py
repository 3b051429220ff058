"""Tasks: LightningModules that combine a network with a loss, metrics and an optimizer."""
