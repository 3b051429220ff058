"""``python -m onecurve`` is the console script ``onecurve``, for where that is not on the PATH."""

from .app.command.console import main

if __name__ == "__main__":
    main()
