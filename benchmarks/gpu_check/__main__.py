"""See `check.py`: what ranks import must have a name of its own."""

import sys

from .check import main

sys.exit(main())
