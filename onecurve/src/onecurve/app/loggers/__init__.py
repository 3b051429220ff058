"""Lightning's loggers, buffered and resumable; `app.config.loggers` says what they take."""
