"""What is learned: LightningModules that tie a network to a loss, metrics and an optimizer."""
