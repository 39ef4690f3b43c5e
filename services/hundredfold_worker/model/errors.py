"""The error of loading."""


class ModelLoadError(Exception):
    """The checkpoint or the options cannot be served; the message names file, tensor or setting, and why."""
