"""The project's package: models, data, tasks and callbacks are yours; the engine runs them."""
