"""Stage 1: a policy suggests, a coder implements, the evaluator's answer becomes a reward."""
