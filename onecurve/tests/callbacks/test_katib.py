"""What Katib reads of a run, by the rules of its file collector (katib 0.19, format JSON)."""

import json
import re
from datetime import datetime
from typing import Any, NoReturn

from conftest import Cli, column
from scripted import scripted


def no_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def collected(text: str, *names: str) -> list[tuple[str, float]]:
    """What the collector reports. Each line but empty ones has to be an object, or it ends."""
    found = []
    for row in text.split("\n"):
        if not row:
            continue
        values: dict[str, Any] = json.loads(row, parse_constant=no_json)
        assert datetime.fromisoformat(values["timestamp"]).tzinfo is not None
        # It passes over what is no string.
        found += [(name, float(values[name])) for name in names if type(values.get(name)) is str]
    return found


def test_each_value_is_reported_once_after_what_was_there(train: Cli, tmp_path: Any) -> None:
    """Half a line of a container that was killed is dropped, and Go reads what is no number."""
    file = tmp_path / "new" / "metrics.json"
    typed = ("callbacks=[checkpoint,katib]", f"callbacks.katib.file={file}")
    train(*typed, "trainer.max_epochs=1", "test=false")
    whole = file.read_text()
    (earlier,) = collected(whole, "val/acc")
    file.write_text(whole + whole[:15])
    none = scripted("val/none", "'nan'", "'-inf'")
    run = train("strategy=pipeline", *typed, none).run
    text = file.read_text()
    assert text.endswith("\n")
    assert collected(text, "val/acc")[0] == earlier
    text = text.removeprefix(whole)
    for name in ("val/acc", "val/loss", "test/acc"):
        reported = [value for _, value in collected(text, name)]
        assert reported == column(run, name), name
        assert len(reported) == (1 if name == "test/acc" else 2)
    assert re.findall('"val/none": "(.*?)"', text) == ["nan", "-inf"]
