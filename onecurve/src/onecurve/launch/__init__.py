"""How ranks start and meet: torchelastic, torchrun, srun. Called, it is `in_ranks.launch`."""

from ..callable_package import make_callable

make_callable(__name__, "in_ranks", "launch")
