"""What Hydra finds of this library: it looks for plugins in this package alone."""

from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.plugins.sweeper import Sweeper


class Configs(SearchPathPlugin):
    """Puts the library's configurations on the search path, behind those of the project.

    A file of the same name in the project's `configs/` comes first, and wins.
    """

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Called by Hydra at every start."""
        search_path.append("onecurve", "pkg://onecurve.configs")


class OptunaSweeper(Sweeper):
    """The sweeper of `sweep=optuna`: the search, which Optuna is imported with."""

    def setup(self, **of_hydra: Any) -> None:
        """Called by Hydra before `sweep`, with the configuration and how to run a job."""
        # Here, as Hydra imports this file at every start.
        from onecurve.app.sweep.search import Search

        self.search = Search(**of_hydra)

    def sweep(self, arguments: list[str]) -> None:
        """Search; the overrides are in the configuration, too."""
        self.search.run()
