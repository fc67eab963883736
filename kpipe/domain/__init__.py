"""Pure functions and frozen dataclasses: what the stages agree on. Standard library only."""
