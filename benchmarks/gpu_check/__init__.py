"""`python -m gpu_check`: whether, and how fast, everything trains on this machine's card.

It needs torch, Lightning and this package: no command line, no data, no network. `entries.py` says
what is checked and what its ranks do, `large.py` what is measured, `tasks.py` what is trained, and
`check.py` runs it all and leaves gpu_check.json, gpu_check.md, and a log of each entry.
"""
