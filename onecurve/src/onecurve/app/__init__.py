"""What makes `python train.py` of a configuration: composition, launch, record, sweeps."""
