"""Record commands in a terminal as an animated SVG: `make face`.

`python docs/record.py FILE FOLDER COMMAND...` runs them, one after the other, in a pseudo-terminal
and a copy of a folder, and keeps what is on the screen when. Nothing is edited but time: pauses
become short, and a longer recording is played faster. pyte knows what a terminal does with what is
written to it.
"""

import fcntl
import os
import pty
import select
import shutil
import struct
import sys
import tempfile
import termios
import time
from html import escape
from pathlib import Path
from typing import NamedTuple

import pyte

COLUMNS, ROWS = 100, 26
PAUSE = 0.8
"""Seconds that nothing on the screen changes, at most."""
FRAME = 0.25
"""Seconds between two pictures, at least."""
LAST = 5.0
"""Seconds that the end stays."""
LENGTH = 20.0
"""Seconds that all of it takes, at most."""
WIDE, HIGH, EDGE = 8.43, 18, 12
COLOURS = {
    "default": "#d6d9e0",
    "black": "#5c6370",
    "red": "#e8707a",
    "green": "#8cc570",
    "brown": "#e5c07b",
    "blue": "#6cb0f5",
    "magenta": "#c98ae8",
    "cyan": "#5bbdc8",
    "white": "#e8ebf2",
}


class Frame(NamedTuple):
    """What the screen shows from a moment on."""

    at: float
    lines: tuple[str, ...]


def line_of(screen: pyte.Screen, row: int) -> str:
    """A line as the spans of its colours; empty for an empty one."""
    runs: list[tuple[str, bool, int, str]] = []
    for column in range(COLUMNS):
        cell = screen.buffer[row][column]
        name = cell.fg.removeprefix("bright")
        look = (COLOURS.get(name, f"#{name}" if len(name) == 6 else COLOURS["default"]), cell.bold)
        if runs and runs[-1][:2] == look:
            runs[-1] = (*runs[-1][:3], runs[-1][3] + cell.data)
        else:
            runs.append((*look, column, cell.data))
    return "".join(
        f'<tspan x="{start * WIDE:.1f}" fill="{colour}" font-weight="{700 if bold else 400}">'
        f"{escape(text.rstrip())}</tspan>"
        for colour, bold, start, text in runs
        if text.strip()
    )


class Recorder:
    """A terminal of a fixed size, and its pictures."""

    def __init__(self) -> None:
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self.stream = pyte.ByteStream(self.screen)
        self.frames: list[Frame] = []
        self.clock = 0.0

    def show(self, passed: float) -> None:
        """Keep what is there after so many seconds, if it is another picture."""
        self.clock += min(passed, PAUSE)
        lines = tuple(line_of(self.screen, row) for row in range(ROWS))
        if not self.frames or self.frames[-1].lines != lines:
            self.frames.append(Frame(self.clock, lines))

    def type(self, command: str) -> None:
        """As if by hand."""
        self.stream.feed(b"\x1b[32m$\x1b[0m ")
        for letter in command:
            self.stream.feed(letter.encode())
            self.show(0.04)
        self.show(0.4)
        self.stream.feed(b"\r\n")

    def run(self, command: str, folder: Path) -> int:
        """Run it, and keep a picture whenever something has come, some times a second."""
        self.type(command)
        child, terminal = pty.fork()
        if child == 0:
            os.chdir(folder)
            os.environ |= {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
            os.execvp("bash", ["bash", "-c", command])
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        last = time.monotonic()
        while True:
            ready, _, _ = select.select([terminal], [], [], FRAME)
            try:
                written = os.read(terminal, 65536) if ready else b""
            except OSError:  # the other end is closed
                break
            if ready and not written:
                break
            self.stream.feed(written)
            if (now := time.monotonic()) - last >= FRAME:
                self.show(now - last)
                last = now
        self.show(FRAME)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def animated(frames: list[Frame], title: str) -> str:
    """All pictures below each other, of which one is shown at a time."""
    width, height = round(COLUMNS * WIDE + 2 * EDGE), ROWS * HIGH + 2 * EDGE
    slower = min(1.0, (LENGTH - LAST) / frames[-1].at)
    length = frames[-1].at * slower + LAST
    moves = "".join(
        f"{100 * frame.at * slower / length:.2f}%{{transform:translateY({-number * height}px)}}"
        for number, frame in enumerate(frames)
    )
    names: dict[str, str] = {}
    pictures = []
    for number, frame in enumerate(frames):
        shown = []
        for row, line in enumerate(frame.lines):
            if line:
                name = names.setdefault(line, f"l{len(names)}")
                y = number * height + row * HIGH
                shown.append(f'<use href="#{name}" y="{y}"/>')
        pictures.append("".join(shown))
    lines = "\n".join(f'<text id="{name}">{line}</text>' for line, name in names.items())
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">
<title>{escape(title)}</title>
<style>
text {{ font: 14px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre }}
.all {{ animation: play {length:.2f}s step-end infinite }}
@keyframes play {{ {moves} }}
@media (prefers-reduced-motion: reduce) {{
  .all {{ animation: none; transform: translateY({-(len(frames) - 1) * height}px) }}
}}
</style>
<defs>
{lines}
</defs>
<rect width="100%" height="100%" rx="8" fill="#20242c"/>
<svg x="{EDGE}" y="{EDGE}" width="{width - 2 * EDGE}" height="{ROWS * HIGH}">
<g class="all"><g transform="translate(0 14)">
{chr(10).join(pictures)}
</g></g></svg>
</svg>
"""


def main(file: Path, folder: Path, *commands: str) -> int:
    """Record, and write; the status is that of the first command that fails."""
    recorder = Recorder()
    # What programs say of where they are is not to be where this machine has its things.
    with tempfile.TemporaryDirectory(prefix="") as place:
        copy = Path(place) / folder.resolve().name
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("runs", ".git"))
        for command in commands:
            if status := recorder.run(command, copy):
                return status
    file.write_text(animated(recorder.frames, "; ".join(commands)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]))
