"""Are these token ids those of this model? Asked before anything is learned or consumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kpipe.errors import TrainError
from kpipe.policy.chat import fingerprint
from kpipe.policy.checkpoint import read_tokenizer
from kpipe.store.records import Sample, StoredTurn

_FIX = "Train the policy that said them: policy.model with their tokenizer, in a run of its own."


def check_vocabulary(groups: Sequence[Sequence[Sample]], model: Any) -> None:
    """Raises TrainError for token ids that the model does not have."""
    known = model.get_input_embeddings().weight.shape[0]
    for sample in (s for group in groups for s in group):
        highest = max([*sample.tokens.prompt, *sample.tokens.completion], default=0)
        if highest >= known:
            raise TrainError(
                f"Turn {sample.turn_id} has the token id {highest}, but the policy knows {known:,} tokens:"
                " another tokenizer made them. Nothing was consumed.",
                _FIX,
            )


class TokenizerCheck:
    """Compares the tokenizer that every sample names with that of the checkpoints, which all have the same."""

    def __init__(self) -> None:
        self._tokenizer: Any = None
        self._ours = ""

    def __call__(
        self, groups: Sequence[Sequence[Sample]], turns: Sequence[StoredTurn], checkpoint: Path
    ) -> None:
        """Raises TrainError. A tokenizer that has another hash and reads the same text is the same one."""
        named = [s for group in groups for s in group if s.tokens.sampling.get("tokenizer")]
        if not named:
            return
        if self._tokenizer is None:
            self._tokenizer = read_tokenizer(checkpoint)
            self._ours = fingerprint(self._tokenizer)["tokenizer"]
        said = {turn.id: turn.suggestion for turn in turns}
        for sample in named:
            theirs = sample.tokens.sampling["tokenizer"]
            if theirs != self._ours and not self._reads(sample, said):
                raise TrainError(
                    f"The tokens of turn {sample.turn_id} are of tokenizer {theirs}, those of {checkpoint} of"
                    f" {self._ours}. Nothing was consumed.",
                    _FIX,
                )

    def _reads(self, sample: Sample, said: Mapping[int, str]) -> bool:
        text = self._tokenizer.decode(sample.tokens.completion, skip_special_tokens=True)
        return bool(text.strip() == said.get(sample.turn_id))
