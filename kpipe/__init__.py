"""kpipe: train a language model to make GPU kernels faster."""

__version__ = "0.1.0"
