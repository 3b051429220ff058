"""From the typed line to a checked configuration: nothing here imports torch."""
