"""Token ids of another tokenizer are refused before anything is learned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from unit.train.making import VOCABULARY, changed, group, learner, settings, tiny_model

from kpipe.errors import TrainError
from kpipe.policy.chat import fingerprint
from kpipe.policy.checkpoint import read_tokenizer
from kpipe.policy.tiny import make_tokenizer
from kpipe.store.records import Sample, StoredTurn
from kpipe.train.checks import TokenizerCheck, check_vocabulary
from kpipe.train.step import make_update
from kpipe.train.tally import Stopwatch
from kpipe.train.update import TooLarge, Update

TEXT = "Fuse the loops."


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    make_tokenizer(["Fuse the loops of the kernel.", "Tile the loops."]).save_pretrained(tmp_path / "one")
    return tmp_path / "one"


def said(tokenizer: Any, name: str) -> tuple[list[list[Sample]], list[StoredTurn]]:
    """One group of one turn that says TEXT in this tokenizer, and its turn."""
    ids = [*tokenizer.encode(TEXT), tokenizer.eos_token_id]
    (first, *_) = group([[1.0]])
    sample = changed(first, completion=ids, logprobs=[-1.0] * len(ids), sampling={"tokenizer": name})
    rest = ("stop", None, None, None, None, "", None, None)
    return [[sample]], [StoredTurn(sample.turn_id, sample.trajectory_id, 0, "settled", TEXT, *rest)]


def test_its_own_tokens_pass(checkpoint: Path) -> None:
    tokenizer = read_tokenizer(checkpoint)
    TokenizerCheck()(*said(tokenizer, fingerprint(tokenizer)["tokenizer"]), checkpoint)


def test_tokens_of_another_one_do_not(checkpoint: Path, tmp_path: Path) -> None:
    make_tokenizer(["lorem ipsum dolor sit amet"]).save_pretrained(tmp_path / "other")
    other = read_tokenizer(tmp_path / "other")
    with pytest.raises(TrainError, match=r"are of tokenizer .*, those of .*one of") as caught:
        TokenizerCheck()(*said(other, fingerprint(other)["tokenizer"]), checkpoint)
    assert "Nothing was consumed" in caught.value.message


def test_the_same_one_under_another_hash_passes(checkpoint: Path) -> None:
    """Another version of the library may write it down in another way."""
    TokenizerCheck()(*said(read_tokenizer(checkpoint), "0" * 16), checkpoint)


def test_samples_that_name_none_are_not_asked(tmp_path: Path) -> None:
    TokenizerCheck()([group([[1.0]])], [], tmp_path / "nowhere")


def test_a_token_beyond_the_vocabulary_is_named() -> None:
    samples = group([[1.0], [2.0]])
    check_vocabulary([samples], tiny_model())
    samples[1] = changed(samples[1], prompt=[3, VOCABULARY])
    with pytest.raises(TrainError, match=f"Turn {samples[1].turn_id} has the token id {VOCABULARY}"):
        check_vocabulary([samples], tiny_model())


@pytest.mark.parametrize(("fitted", "budget"), [(700, 700), (0, 512)])
def test_what_would_fit_is_said(monkeypatch: pytest.MonkeyPatch, fitted: int, budget: int) -> None:
    def run(_: Update) -> None:
        raise TooLarge(1024, fitted)

    monkeypatch.setattr(Update, "run", run)
    config = settings()
    who = learner(config)
    batch = [replace(s, reward=float(i)) for i, s in enumerate(group([[1.0], [2.0]]))]
    with pytest.raises(TrainError, match="1,024 tokens in one pass did not") as caught:
        make_update(who, [batch], [], config, seed=0, step=3, watch=Stopwatch(who.device))
    assert f"train.max_tokens_per_micro_batch={budget} " in caught.value.fix
    assert "train.gradient_checkpointing=true" in caught.value.fix
