"""The engine: what turns a composed configuration into a finished run.

Edited rarely. It asks the rooms beside it (models, data, tasks, callbacks) only for what the task
contract says, and builds them from the configuration.
"""
