"""Stage 2: build, check and time kernels that nobody trusts."""
