"""`python -m onecurve.gpu_check`: whether, and how fast, everything trains on this machine's card.

It needs torch, Lightning and this package: no command line, no data, no network. `entries.py` says
what is checked, `tasks.py` what is trained, `one_entry.py` and `large.py` what a rank does, and
`page.py` what is left: gpu_check.json, gpu_check.md, and a log of each entry.
"""
