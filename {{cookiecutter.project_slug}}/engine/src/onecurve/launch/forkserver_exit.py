"""The first module that the forkserver imports: with its last client gone, it ends at once."""

from . import quick_exit

quick_exit.status = 0
quick_exit.last_of_all()
