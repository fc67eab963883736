"""Stage 3: complete groups become GRPO updates, each committed exactly once."""
