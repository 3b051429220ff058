"""Puts this library's configurations on Hydra's search path, behind those of the project."""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin


class Configs(SearchPathPlugin):
    """A file of the same name in the project's `configs/` comes first, and wins."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Called by Hydra at every start."""
        search_path.append("onecurve", "pkg://onecurve.configs")
