"""Errors that belong to no room: what ends a start."""


class StartError(Exception):
    """Why a service cannot start; the message is for the person who started it."""
