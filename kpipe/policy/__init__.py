"""Who suggests: the port, transformers checkpoints, and the small policy that is built on the spot."""
