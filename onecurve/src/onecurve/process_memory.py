"""The peak memory of this process, measured without importing torch."""

import sys
from contextlib import suppress
from pathlib import Path

try:
    import resource
except ImportError:  # not on Windows, where no peak is known
    resource = None  # type: ignore[assignment]


def reset_peak() -> None:
    """Reset the peak. Only Linux can; elsewhere it is that of the whole process."""
    with suppress(OSError):
        # Resets VmHWM: man 5 proc_pid_clear_refs.
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """The peak since `reset_peak`, or of the whole process; 0 if it is unknown."""
    # Only on Linux.
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        peak = next(line for line in lines if line.startswith("VmHWM:"))
        return int(peak.split()[1]) * 1024
    if resource is None:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
