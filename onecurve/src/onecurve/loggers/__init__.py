"""Lightning's loggers, buffered and resumable; `onecurve.config.loggers` says what they take."""
