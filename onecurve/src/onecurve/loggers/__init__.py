"""Where metrics go: Lightning's loggers, buffered."""
