"""The server cannot go on: a plain sentence for the person who runs it."""


class FrontsLost(Exception):
    """No web process is left, and no more are started."""
