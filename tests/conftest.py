"""What `make test` was told, such as ARGS, is not for the commands that tests type."""

import os

for name in ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "ARGS", "PYTHON"):
    os.environ.pop(name, None)
