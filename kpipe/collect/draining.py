"""The exception that ends a trajectory early without losing it."""


class Draining(Exception):
    """The collector is stopping; everything so far is stored and will be resumed."""
