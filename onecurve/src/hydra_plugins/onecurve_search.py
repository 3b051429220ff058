"""Where Hydra finds the search of `sweep=optuna`: it looks for sweepers in this package alone."""

from typing import Any

from hydra.plugins.sweeper import Sweeper


class OptunaSweeper(Sweeper):
    """Hands over to the search, which Optuna is imported with."""

    def setup(self, **of_hydra: Any) -> None:
        """Called by Hydra before `sweep`, with the configuration and how to run a job."""
        # Here, as Hydra imports this file at every start.
        from onecurve.sweep.search import Search

        self.search = Search(**of_hydra)

    def sweep(self, arguments: list[str]) -> None:
        """Search; the overrides are in the configuration, too."""
        self.search.run()
