"""Lets ranks that torchrun or srun has started agree on one run, before it creates its directory.

They meet in a key-value store, and use the run directory of rank 0.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoint.file import newest_checkpoint
from ..checkpoint.remote import DIRPATH, LAST, fetch, find, folder_of
from ..errors import UserError
from ..machine import Ranks
from .addresses import ANSWER, answered, store_of_attempt, wait
from .context import Attempt, Members, RunContext


@dataclass(eq=False, kw_only=True)
class Meeting(Members):
    """Processes that communicate through a store, which holds values as JSON."""

    store: Any  # a TCPStore
    index: int  # the number of this process; 0 is the first
    count: int  # the number of processes
    limit: float  # seconds to wait for the others
    late: str  # the error line if they have not come by then

    def broadcast(self, key: str, find_out: Callable[[], Any]) -> Any:
        if self.is_first:
            try:
                decided = [find_out(), None]
            except UserError as error:
                decided = [None, str(error)]
            self._set(key, decided)
        answer, refusal = self._get([key])[0]
        if refusal is None:
            return answer
        self._set(f"{key} was read/{self.index}", True)
        if self.is_first:  # serves the store, and ends once the others have read why
            with suppress(UserError):
                self._get([f"{key} was read/{index}" for index in range(self.count)], ANSWER)
        raise UserError(refusal)

    def gather(self, key: str, value: Any) -> list[Any]:
        self._set(f"{key}/{self.index}", value)
        keys = [f"{key}/{index}" for index in range(self.count)]
        return self._get(keys) if self.is_first else []

    def reports_failure(self) -> bool:
        try:
            return int(self.store.add("failures", 1)) == 1
        except RuntimeError:
            return True

    def _set(self, key: str, value: Any) -> None:
        with answered(self.store.host, self.store.port):
            self.store.set(key, json.dumps(value))

    def _get(self, keys: list[str], seconds: float | None = None) -> list[Any]:
        """What others have set, or set within the limit."""
        with answered(self.store.host, self.store.port):
            deadline = time.monotonic() + (seconds or self.limit)
            wait(lambda: bool(self.store.check(keys)), deadline, self.late)
            return [json.loads(self.store.get(key)) for key in keys]


def meet_ranks(ranks: Ranks, config: Mapping[str, Any], run_dir: Path) -> RunContext:
    """Meet the other ranks of an attempt, and adopt what rank 0 decides.

    `run_dir` is the directory of a new run; a restarted attempt uses that of the earlier ranks.

    Raises:
        UserError: If not all ranks come within `launch.timeout_seconds`, or if a rank has no access
            to the checkpoint to resume from.
    """
    limit = float(config["launch"]["timeout_seconds"]) if "launch" in config else 600.0
    members = _members(ranks, limit)
    run_dir, attempt = agree(members, ranks, run_dir, folder_of(config))
    # The context keeps `members` alive, and with them the store that the process group will use.
    return RunContext(run_dir, members, attempt)


def _members(ranks: Ranks, limit: float) -> Members:
    if ranks.world_size == 1:
        return Members()
    late = (
        f"trainer.num_nodes={ranks.nodes}: not all of {ranks.world_size} ranks came within "
        f"{limit:g} s (launch.timeout_seconds); start all of them at the same time"
    )
    store = store_of_attempt(ranks, time.monotonic() + limit, late)
    return Meeting(store=store, index=ranks.rank, count=ranks.world_size, limit=limit, late=late)


def _run_dir_note() -> Path | None:
    """A file in which ranks leave their run directory for the ranks of the next attempt.

    Without it, ranks that torchrun restarts would create a new run. torchelastic creates a folder
    per agent with attempt_N/LOCAL_RANK/error.json in it.
    """
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    return Path(file).parents[2] / "run_dir" if file else None


def agree(
    members: Members, ranks: Ranks, run_dir: Path, address: str | None
) -> tuple[Path, Attempt]:
    """Let rank 0 decide for all: the run directory, and what an attempt resumes from.

    That is a file on a disk which all ranks see, or a copy of last.ckpt at an address.
    """
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    note = _run_dir_note()
    mine = note.read_text() if note and note.exists() else None
    noted = members.gather("noted", [mine, restarts])
    last = f"{address}/{LAST}"

    def decide() -> list[Any]:
        earlier = next((directory for directory, _ in noted if directory), None)
        # torchrun does not count a restart because a node has come or left.
        number = max(int(earlier is not None), *(count for _, count in noted))
        directory = earlier or str(run_dir)
        if not number:
            return [directory, number, None, None]
        if address:
            return [directory, number, None, find(DIRPATH, last, needed=False)]
        newest = newest_checkpoint(Path(directory))[0]
        return [directory, number, str(newest) if newest else None, None]

    directory, number, checkpoint, found = members.broadcast("attempt", decide)
    if note and ranks.local_rank == 0:
        note.write_text(directory)
    if found:
        checkpoint = str(fetch(DIRPATH, last, found))
    if checkpoint is None:
        return Path(directory), Attempt(number)
    lacking = sum(members.gather("lacks", not os.path.exists(checkpoint)))

    def reject_lacking() -> None:
        if lacking:
            raise UserError(
                f"launch.max_restarts: {lacking} of {ranks.world_size} ranks have no access to "
                f"{checkpoint}; use a disk that all nodes share, or write checkpoints to an "
                f"address: {DIRPATH}=s3://BUCKET/PATH"
            )

    members.broadcast("lacking", reject_lacking)
    return Path(directory), Attempt(number, checkpoint)
