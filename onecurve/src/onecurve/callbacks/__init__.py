"""Callbacks for every strategy: one file each; `onecurve.config.callbacks` says what they take."""
