"""Token completions: the shapes of vLLM and SGLang, and numbers that the model itself confirms."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from safetensors.torch import save_file

from kpipe.config import PolicyConfig
from kpipe.loopback.completions import Completions, Quirks
from kpipe.loopback.engine import CheckpointEngine
from kpipe.loopback.server import Loopback
from kpipe.policy import open_policy
from kpipe.policy.base import SuggestRequest
from kpipe.policy.logprobs import completion_logprobs
from kpipe.policy.tiny import make_model, make_tokenizer

PROMPT = list(range(40, 60))
OTHER = list(range(70, 79))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights: quick to make, and its log-probabilities are as good as any."""
    path = tmp_path_factory.mktemp("policy")
    tokenizer = make_tokenizer(["Fuse the loops.", "Use tiles."])
    make_model(tokenizer, 0).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> CheckpointEngine:
    return CheckpointEngine(checkpoint, "policy")


@pytest.fixture
async def server(engine: CheckpointEngine) -> AsyncIterator[Loopback]:
    async with Loopback(policy=Completions(engine)) as running:
        yield running


async def post(server: Loopback, path: str, tree: dict[str, Any], status: int = 200) -> Any:
    async with (
        aiohttp.ClientSession() as session,
        session.post(server.url.removesuffix("/v1") + path, json=tree) as response,
    ):
        assert response.status == status, await response.text()
        text = await response.text()
        return json.loads(text) if text.startswith(("{", "[")) else text


def asked(**more: Any) -> dict[str, Any]:
    usual = {"model": "policy", "prompt": PROMPT, "max_tokens": 6, "logprobs": 0, "return_token_ids": True}
    return {**usual, "seed": 5, "top_p": 1, **more}


def recomputed(
    engine: CheckpointEngine, prompt: list[int], ids: list[int], temperature: float
) -> list[float]:
    with torch.no_grad():
        return completion_logprobs(engine.models["policy"], [prompt], [ids], temperature)[0][0].tolist()


async def test_ids_and_logprobs_are_those_of_the_model(server: Loopback, engine: CheckpointEngine) -> None:
    answer = await post(server, "/v1/completions", asked(temperature=0.7))
    (choice,) = answer["choices"]
    assert choice["prompt_token_ids"] == PROMPT
    expected = recomputed(engine, PROMPT, choice["token_ids"], 0.7)
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(expected, abs=1e-5)
    assert len(choice["logprobs"]["tokens"]) == len(choice["token_ids"])
    assert answer["usage"]["completion_tokens"] == len(choice["token_ids"])


async def test_a_seed_draws_what_the_local_policy_draws(server: Loopback, checkpoint: Path) -> None:
    local = open_policy(PolicyConfig(max_new_tokens=6, temperature=0.7), checkpoint)
    (said,) = local.suggest([SuggestRequest("Make it faster.", 5)])
    answer = await post(server, "/v1/completions", asked(prompt=list(said.prompt_ids), temperature=0.7))
    assert answer["choices"][0]["token_ids"] == list(said.completion_ids)


async def test_several_prompts_and_several_completions(server: Loopback) -> None:
    both = (await post(server, "/v1/completions", asked(prompt=[PROMPT, OTHER], n=2)))["choices"]
    assert [c["prompt_token_ids"] for c in both] == [PROMPT, PROMPT, OTHER, OTHER]
    assert [c["index"] for c in both] == [0, 1, 2, 3]
    alone = (await post(server, "/v1/completions", asked(seed=6)))["choices"][0]
    assert both[1]["token_ids"] == alone["token_ids"] != both[0]["token_ids"]


async def test_greedy_and_nucleus(server: Loopback, engine: CheckpointEngine) -> None:
    greedy = (await post(server, "/v1/completions", asked(temperature=0, seed=None)))["choices"][0]
    with torch.no_grad():
        best = int(engine.models["policy"](torch.tensor([PROMPT])).logits[0, -1].argmax())
    assert greedy["token_ids"][0] == best
    narrow = (await post(server, "/v1/completions", asked(top_p=1e-6, seed=None)))["choices"][0]
    assert narrow["token_ids"] == greedy["token_ids"]
    assert narrow["logprobs"]["token_logprobs"] == pytest.approx([0.0] * len(narrow["token_ids"]))


async def test_the_end_token_is_among_the_ids_and_not_in_the_text(
    server: Loopback, engine: CheckpointEngine
) -> None:
    first = (await post(server, "/v1/completions", asked()))["choices"][0]
    stop = first["token_ids"][2]
    choice = (await post(server, "/v1/completions", asked(stop_token_ids=[stop])))["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["token_ids"] == first["token_ids"][: first["token_ids"].index(stop) + 1]
    assert choice["text"] == engine.tokenizer.decode(choice["token_ids"][:-1], skip_special_tokens=True)
    assert first["finish_reason"] == "length"


async def test_the_shape_of_sglang(server: Loopback, engine: CheckpointEngine) -> None:
    params = {"temperature": 0.7, "max_new_tokens": 6, "sampling_seed": 5}
    tree = {"input_ids": PROMPT, "sampling_params": params, "return_logprob": True}
    one = await post(server, "/generate", tree)
    vllm = (await post(server, "/v1/completions", asked(temperature=0.7)))["choices"][0]
    assert one["output_ids"] == vllm["token_ids"]
    said = one["meta_info"]["output_token_logprobs"]
    assert [t for _, t, _ in said] == one["output_ids"]
    assert [p for p, _, _ in said] == pytest.approx(vllm["logprobs"]["token_logprobs"])
    assert one["meta_info"]["finish_reason"] == {"type": "length", "length": 6}
    many = await post(server, "/generate", {**tree, "input_ids": [PROMPT, OTHER]})
    assert many[0]["output_ids"] == one["output_ids"]
    assert len(many) == 2


async def test_what_a_server_may_lack(engine: CheckpointEngine, checkpoint: Path) -> None:
    async with Loopback(policy=Completions(engine, Quirks(token_ids=False, logprobs=False))) as bare:
        (choice,) = (await post(bare, "/v1/completions", asked()))["choices"]
        assert choice["logprobs"] is None
        assert "token_ids" not in choice
    raw = CheckpointEngine(checkpoint, "policy", processed=False)
    async with Loopback(policy=Completions(raw)) as unprocessed:
        (choice,) = (await post(unprocessed, "/v1/completions", asked(temperature=0.5)))["choices"]
        expected = recomputed(engine, PROMPT, choice["token_ids"], 1.0)
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"model": "other"}, 404, "does not exist"),
        ({"prompt": [10**9]}, 400, "out of vocabulary"),
        ({"prompt": []}, 400, "prompt must be"),
        ({"prompt": [40] * 2040, "max_tokens": 20}, 400, "maximum context length is 2048"),
        ({"top_k": 5}, 400, "top_k"),
        ({"n": 0}, 400, "n must be"),
        ({"temperature": -1}, 400, "temperature"),
    ],
)
async def test_what_is_refused(change: dict[str, Any], status: int, message: str, server: Loopback) -> None:
    error = (await post(server, "/v1/completions", asked(**change), status))["error"]
    assert message in error["message"]
    assert error["code"] == status


async def test_a_lora_adapter_is_another_model(
    server: Loopback, engine: CheckpointEngine, tmp_path: Path
) -> None:
    target = "model.layers.0.mlp.down_proj"
    weight = dict(engine.models["policy"].named_parameters())[f"{target}.weight"]
    torch.manual_seed(0)
    a, b = torch.randn(2, weight.shape[1]), torch.randn(weight.shape[0], 2)
    save_file(
        {f"base_model.model.{target}.lora_{n}.weight": t for n, t in (("A", a), ("B", b))},
        tmp_path / "adapter_model.safetensors",
    )
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 2, "lora_alpha": 4}))
    load = {"lora_name": "step-1", "lora_path": str(tmp_path)}
    assert "added successfully" in await post(server, "/v1/load_lora_adapter", load)
    assert "already" in (await post(server, "/v1/load_lora_adapter", load, 400))["error"]["message"]
    adapted = dict(engine.models["step-1"].named_parameters())[f"{target}.weight"]
    assert torch.allclose(adapted, weight + 2 * (b @ a), atol=1e-4)
    choice = (await post(server, "/v1/completions", asked(model="step-1")))["choices"][0]
    assert choice["token_ids"] != (await post(server, "/v1/completions", asked()))["choices"][0]["token_ids"]
    await post(server, "/v1/unload_lora_adapter", {"lora_name": "step-1"})
    await post(server, "/v1/completions", asked(model="step-1"), 404)
    await post(server, "/v1/unload_lora_adapter", {"lora_name": "step-1"}, 404)
    await post(server, "/v1/load_lora_adapter", {**load, "lora_path": str(tmp_path / "no")}, 404)


async def test_weights_are_replaced(checkpoint: Path, tmp_path: Path) -> None:
    engine = CheckpointEngine(checkpoint, "policy")
    make_model(engine.tokenizer, 1).save_pretrained(tmp_path)
    async with Loopback(policy=Completions(engine)) as server:
        before = (await post(server, "/v1/completions", asked()))["choices"][0]["token_ids"]
        told = await post(server, "/update_weights_from_disk", {"model_path": str(tmp_path)})
        assert told["success"]
        after = (await post(server, "/v1/completions", asked()))["choices"][0]["token_ids"]
        assert before != after
        missing = {"model_path": str(tmp_path / "no")}
        assert not (await post(server, "/update_weights_from_disk", missing, 400))["success"]


async def test_faults_and_counts_hold_for_completions(server: Loopback) -> None:
    server.faults = ["503"]
    await post(server, "/v1/completions", asked(), 503)
    await post(server, "/v1/completions", asked())
    assert server.answered == 1
    assert server.paths["/v1/completions"] == 2
