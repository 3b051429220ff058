"""How ranks start and meet: torchelastic, torchrun, srun."""
