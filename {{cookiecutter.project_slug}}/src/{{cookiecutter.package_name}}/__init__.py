"""The project's package: models, data, tasks and callbacks are yours; onecurve runs them."""
