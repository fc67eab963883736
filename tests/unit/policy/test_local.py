import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from kpipe.config import Config, PolicyConfig
from kpipe.errors import PolicyError
from kpipe.policy import SuggestRequest, digest, local, open_policy, prepare_base
from kpipe.policy.logprobs import completion_logprobs

Checkpoint = Callable[..., Path]
SETTINGS = PolicyConfig(kind="local", device="cpu", max_new_tokens=10, threads=1)
REQUESTS = [SuggestRequest(text, seed) for seed, text in enumerate(["a", "tile it", "a", "b" * 70])]


def test_suggestions_in_order_with_exact_tokens(checkpoint: Checkpoint) -> None:
    policy = open_policy(SETTINGS, checkpoint())
    said = policy.suggest(REQUESTS)
    tokenizer = policy.tokenizer
    for request, s in zip(REQUESTS, said, strict=True):
        turn = [{"role": "user", "content": request.prompt}]
        rendered = tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
        assert tokenizer.decode(s.prompt_ids) == rendered
        assert s.text == tokenizer.decode(s.completion_ids, skip_special_tokens=True).strip()
        assert s.finish_reason == ("stop" if s.completion_ids[-1] == tokenizer.eos_token_id else "length")
        assert s.sampling["seed"] == request.seed
        assert s.sampling["temperature"] == 1.0
        json.dumps(dict(s.sampling))
    logp, mask, _ = completion_logprobs(
        policy.model, [s.prompt_ids for s in said], [s.completion_ids for s in said], 1.0
    )
    flat = torch.tensor([value for s in said for value in s.logprobs])
    torch.testing.assert_close(logp[mask], flat, atol=1e-5, rtol=0)


def test_small_token_budget_changes_nothing(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = open_policy(SETTINGS, checkpoint())
    at_once = policy.suggest(REQUESTS)
    batches: list[int] = []
    real = local.sample

    def counting(model, prompts, *rest):
        batches.append(len(prompts))
        return real(model, prompts, *rest)

    monkeypatch.setattr(local, "sample", counting)
    monkeypatch.setitem(local.TOKENS_TOGETHER, "cpu", 120)
    split = policy.suggest(REQUESTS)
    assert batches == [1, 3]
    assert [s.completion_ids for s in split] == [s.completion_ids for s in at_once]


def test_no_requests_no_suggestions(checkpoint: Checkpoint) -> None:
    assert open_policy(SETTINGS, checkpoint()).suggest([]) == []


def test_too_long_prompt_is_answered_without_sampling(checkpoint: Checkpoint) -> None:
    policy = open_policy(SETTINGS.model_copy(update={"max_prompt_tokens": 60}), checkpoint())
    short, long = policy.suggest([REQUESTS[0], REQUESTS[3]])
    assert short.finish_reason in ("stop", "length")
    assert long.finish_reason == "prompt_too_long"
    assert (long.text, list(long.completion_ids), list(long.logprobs)) == ("", [], [])


def test_positions_of_the_model_limit_the_prompt(checkpoint: Checkpoint) -> None:
    policy = open_policy(SETTINGS, checkpoint(max_position_embeddings=64))
    assert [s.finish_reason == "prompt_too_long" for s in policy.suggest(REQUESTS)] == [False] * 3 + [True]


def test_bfloat16(checkpoint: Checkpoint) -> None:
    policy = open_policy(SETTINGS.model_copy(update={"dtype": "bfloat16"}), checkpoint())
    assert policy.model.dtype == torch.bfloat16
    assert all(s.logprobs for s in policy.suggest(REQUESTS))


def test_load_takes_over_weights_in_place(checkpoint: Checkpoint) -> None:
    old, new = checkpoint("old"), checkpoint("new", seed=1)
    policy = open_policy(SETTINGS, old)
    before = policy.suggest(REQUESTS)
    embedding = policy.model.get_input_embeddings().weight
    policy.load(str(new), 3)
    assert policy.version == 3
    assert policy.model.get_input_embeddings().weight is embedding
    assert policy.suggest(REQUESTS) == open_policy(SETTINGS, new).suggest(REQUESTS)
    policy.load(str(old), 4)
    assert policy.suggest(REQUESTS) == before


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"hidden_size": 64}, r"is \(259, 64\) in .*other and \(259, 32\) in .*model"),
        ({"num_hidden_layers": 3}, r"model\.layers\.2\..* in .*other and missing in .*model"),
        ({"vocab_size": 300}, r"is \(300, 32\) in .*other and \(259, 32\) in .*model"),
    ],
)
def test_other_shapes_are_refused_and_nothing_is_lost(
    checkpoint: Checkpoint, changes: dict[str, int], difference: str
) -> None:
    policy = open_policy(SETTINGS, checkpoint())
    before = policy.suggest(REQUESTS)
    with pytest.raises(PolicyError, match=difference):
        policy.load(str(checkpoint("other", **changes)), 1)
    assert policy.version == 0
    assert policy.suggest(REQUESTS) == before


def test_other_architecture_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    policy = open_policy(SETTINGS, checkpoint())
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 259}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    LlamaForCausalLM(LlamaConfig(**sizes, **heads)).save_pretrained(tmp_path / "llama")
    with pytest.raises(PolicyError, match=r"llama holds a LlamaForCausalLM, .*model a Qwen2ForCausalLM"):
        policy.load(str(tmp_path / "llama"), 1)


def _truncate(path: Path) -> None:
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:20_000])


def _garble(path: Path) -> None:
    (path / "model.safetensors").write_bytes(b"no weights" * 100)


def _pickle_only(path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(path)
    torch.save(model.state_dict(), path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()


def _edit_config(path: Path, **changes: object) -> None:
    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def _add_layer(path: Path) -> None:
    _edit_config(path, num_hidden_layers=3, layer_types=["full_attention"] * 3)


def _bring_code(path: Path) -> None:
    names = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    _edit_config(path, model_type="own", auto_map=names)
    (path / "own.py").write_text(f"open({str(path / 'ran')!r}, 'w')\n")


def _without(*patterns: str) -> Callable[[Path], None]:
    def remove(path: Path) -> None:
        for pattern in patterns:
            for file in path.glob(pattern):
                file.unlink()

    return remove


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (_truncate, "cannot be loaded"),
        (_garble, "cannot be loaded"),
        (_pickle_only, "no safetensors weights"),
        (_add_layer, "incomplete"),
        (_bring_code, "cannot be loaded"),
        (lambda p: (p / "config.json").write_text("{"), "cannot be loaded"),
        (lambda p: _edit_config(p, model_type="unheard_of", architectures=["Unheard"]), "cannot be loaded"),
        (lambda p: _edit_config(p, hidden_size=64), "cannot be loaded"),
        (_without("config.json"), "no config.json"),
        (_without("tok*"), "no tokenizer|tokenizer .* cannot be loaded"),
        (_without("chat_template*"), "no chat template"),
    ],
)
def test_bad_checkpoint_is_one_sentence(
    checkpoint: Checkpoint, damage: Callable[[Path], object], sentence: str
) -> None:
    path = checkpoint()
    damage(path)
    with pytest.raises(PolicyError, match=sentence) as caught:
        open_policy(SETTINGS, path)
    assert str(path) in caught.value.message
    assert caught.value.fix
    assert "\n" not in str(caught.value)
    assert not (path / "ran").exists(), "code that came with a checkpoint must never run"


def test_damaged_update_keeps_the_old_weights(checkpoint: Checkpoint) -> None:
    policy = open_policy(SETTINGS, checkpoint("old"))
    before = policy.suggest(REQUESTS)
    new = checkpoint("new", seed=1)
    _truncate(new)
    with pytest.raises(PolicyError, match="cannot be loaded"):
        policy.load(str(new), 1)
    assert policy.suggest(REQUESTS) == before


@pytest.mark.parametrize("model", ["/nowhere/at/all", "./nowhere", "a/b/c", "../x"])
def test_missing_directory(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(PolicyError, match="no model directory"):
        open_policy(SETTINGS, model)


def test_hub_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(PolicyError, match="kpipe-test/not-there is no directory here, and the hub") as caught:
        open_policy(SETTINGS, "kpipe-test/not-there")
    assert "network" in caught.value.fix


@pytest.mark.parametrize("device", ["cuda:99", "abacus"])
def test_missing_device(checkpoint: Checkpoint, device: str) -> None:
    with pytest.raises(PolicyError, match=f"no device '{device}'"):
        open_policy(SETTINGS.model_copy(update={"device": device}), checkpoint())


def test_base_of_a_local_model_is_a_directory_of_links(checkpoint: Checkpoint, tmp_path: Path) -> None:
    source = checkpoint()
    (source / "pytorch_model.bin").write_bytes(b"pickles stay behind")
    config = Config(policy=SETTINGS.model_copy(update={"model": str(source)}))
    base = tmp_path / "runs" / "step-000000"
    assert prepare_base(config, base) == digest(source) == digest(base)
    assert prepare_base(config, base) == digest(source)
    assert not (base / "pytorch_model.bin").exists()
    assert open_policy(SETTINGS, base).suggest(REQUESTS) == open_policy(SETTINGS, source).suggest(REQUESTS)
    shutil.rmtree(base)
    assert (source / "model.safetensors").exists()


def test_unusable_local_model_leaves_no_base(checkpoint: Checkpoint, tmp_path: Path) -> None:
    source = checkpoint()
    _truncate(source)
    config = Config(policy=SETTINGS.model_copy(update={"model": str(source)}))
    with pytest.raises(PolicyError, match="cannot be loaded"):
        prepare_base(config, tmp_path / "base")
    assert not (tmp_path / "base").exists()


def test_digest_follows_weights_and_configuration(checkpoint: Checkpoint) -> None:
    path = checkpoint()
    first = digest(path)
    (path / "notes.log").write_text("not part of the model")
    assert digest(path) == first
    _edit_config(path, rms_norm_eps=1e-5)
    assert digest(path) != first
    with pytest.raises(PolicyError, match="no checkpoint"):
        digest(path / "nothing")
