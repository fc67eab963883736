"""A policy server as vLLM or SGLang would be, over a real small model, with the ways to start it wrong.

It samples with the same random numbers as the policy in process does, so that both must say the same.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from aiohttp import web
from transformers import AutoModelForCausalLM

from kpipe.policy.sampling import sample, uniforms


@dataclass
class PolicyServer:
    """`faults`: what is wrong with it. `calls`: paths in the order in which they came, samples left out.

    `unit/policy/test_server.py` serves its application from a thread.
    """

    path: Path
    engine: str = "vllm"
    context: int = 512
    faults: frozenset[str] = frozenset()
    key: str = ""
    top_k: int = 20
    delay_s: float = 0.0
    calls: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    models: dict[str, Any] = field(default_factory=dict)
    failing: int = 0
    busy: int = 0
    most_busy: int = 0
    reloaded_while_busy: bool = False

    def __post_init__(self) -> None:
        torch.set_num_threads(1)
        self.models["served"] = self._read(self.path)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_get("/v1/models", self._list)
        app.router.add_get("/version", self._version)
        if self.engine == "vllm":
            app.router.add_post("/v1/completions", self._completions)
            app.router.add_post("/v1/load_lora_adapter", self._load_adapter)
            if "no dev mode" not in self.faults:
                for path in ("/pause", "/resume", "/reset_prefix_cache"):
                    app.router.add_post(path, self._note)
                app.router.add_post("/collective_rpc", self._collective_rpc)
        else:
            app.router.add_post("/generate", self._generate)
            app.router.add_post("/update_weights_from_disk", self._update_weights)
        return app

    async def _list(self, request: web.Request) -> web.Response:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": {"message": f"wrong key {self.key}"}}, status=401)
        card = {"id": "served", "object": "model", "owned_by": self.engine, "max_model_len": self.context}
        return web.json_response({"object": "list", "data": [card]})

    async def _completions(self, request: web.Request) -> web.Response:
        asked = await request.json()
        if asked["model"] not in self.models:
            return web.json_response({"error": {"message": "no such model"}}, status=404)
        if self.failing > 0:
            self.failing -= 1
            return web.json_response({"error": {"message": "out of breath"}}, status=503)
        ids, logprobs, stopped, top = await self._sample(
            asked["model"], asked["prompt"], asked["temperature"], asked["max_tokens"], asked["seed"],
            frozenset(asked["stop_token_ids"]),
        )  # fmt: skip
        choice: dict[str, Any] = {
            "index": 0,
            "text": "",
            "finish_reason": "stop" if stopped else "length",
            "token_ids": ids,
            "prompt_token_ids": asked["prompt"],
            "logprobs": {
                "tokens": [f"token_id:{i}" for i in ids],
                "token_logprobs": logprobs,
                "top_logprobs": [{f"token_id:{i}": v for i, v in top[: asked["logprobs"]]}],
            },
        }
        if "no log-probs" in self.faults:
            choice["logprobs"] = None
        if "no ids" in self.faults:
            del choice["token_ids"]
            choice["logprobs"]["tokens"] = ["word" for _ in ids]
        if "no end token" in self.faults and stopped:
            choice["token_ids"], choice["logprobs"]["token_logprobs"] = (
                ids[:-1] or [65],
                logprobs[:-1] or [-1],
            )
        if "other lengths" in self.faults:
            choice["logprobs"]["token_logprobs"] = [*logprobs, -1.0]
        if "re-tokenizes" in self.faults:
            choice["prompt_token_ids"] = [0, *asked["prompt"]]
        if "no top" in self.faults:
            choice["logprobs"]["top_logprobs"] = None
        return web.json_response({"id": "1", "object": "text_completion", "choices": [choice]})

    async def _generate(self, request: web.Request) -> web.Response:
        asked = await request.json()
        given = asked["sampling_params"]
        ids, logprobs, stopped, top = await self._sample(
            "served", asked["input_ids"], given["temperature"], given["max_new_tokens"],
            given["sampling_seed"], frozenset(given["stop_token_ids"]),
        )  # fmt: skip
        meta = {
            "finish_reason": {"type": "stop", "matched": ids[-1]} if stopped else {"type": "length"},
            "output_token_logprobs": [[v, i, None] for i, v in zip(ids, logprobs, strict=True)],
            "output_top_logprobs": [[[v, i, None] for i, v in top[: asked["top_logprobs_num"]]]],
        }
        if "no log-probs" in self.faults:
            del meta["output_token_logprobs"]
        return web.json_response({"text": "", "output_ids": ids, "meta_info": meta})

    async def _sample(
        self, name: str, prompt: list[int], temperature: float, count: int, seed: int, stop: frozenset[int]
    ) -> tuple[list[int], list[float], bool, list[tuple[int, float]]]:
        self.busy += 1
        self.most_busy = max(self.most_busy, self.busy)
        await asyncio.sleep(self.delay_s)
        model = self.models[name]
        (drawn,) = sample(model, [prompt], uniforms(seed, count)[None], temperature, stop)
        if "raw" in self.faults:
            drawn.logprobs = self._raw(model, prompt, drawn.ids)
        scale = 1.0 if "raw" in self.faults else temperature
        with torch.no_grad():
            logp = (model(torch.tensor([prompt])).logits[0, -1].float() / scale).log_softmax(-1)
        if "unnormalised" in self.faults:
            logp = logp + 3.0
        values, ids = logp.topk(self.top_k)
        self.busy -= 1
        top = [(int(i), min(0.0, float(v))) for i, v in zip(ids, values, strict=True)]
        return drawn.ids, drawn.logprobs, drawn.stopped, top

    @staticmethod
    def _raw(model: Any, prompt: list[int], ids: list[int]) -> list[float]:
        with torch.no_grad():
            logp = (
                model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
            )
        return [float(row[i]) for row, i in zip(logp, ids, strict=True)]

    async def _load_adapter(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        if body["lora_name"] in self.models:
            message = f"The lora adapter '{body['lora_name']}' has already been loaded."
            return web.json_response({"error": {"message": message}}, status=400)
        self.models[body["lora_name"]] = self._read(Path(body["lora_path"]))
        return web.Response(text="Success: LoRA adapter added.")

    async def _collective_rpc(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        assert body["method"] == "reload_weights"
        return self._replace(body["kwargs"]["weights_path"]) or web.json_response({"results": [None]})

    async def _update_weights(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        if refused := self._replace(body["model_path"]):
            return refused
        return web.json_response({"success": True, "message": "Succeeded."})

    def _replace(self, path: str) -> web.Response | None:
        self.reloaded_while_busy |= self.busy > 0
        if not Path(path).is_dir():
            content = {"success": False, "message": f"{path} is not there"}
            return web.json_response(content, status=400)
        self.models["served"] = self._read(Path(path))
        return None

    async def _note(self, request: web.Request) -> web.Response:
        await self._body(request)
        return web.Response(text="")

    async def _body(self, request: web.Request) -> dict[str, Any]:
        self.calls.append(request.path)
        text = await request.text()
        self.bodies.append(json.loads(text) if text else {})
        return self.bodies[-1]

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.99"})

    async def until_busy(self, count: int) -> None:
        """Wait until so many samples are being drawn at once."""
        while True:
            if self.busy >= count:
                return
            await asyncio.sleep(0.001)

    @staticmethod
    def _read(path: Path) -> Any:
        with (
            TemporaryDirectory() as whole
        ):  # a checkpoint that plays an adapter, whether peft is installed or not
            for file in path.iterdir():
                if file.name != "adapter_config.json":
                    (Path(whole) / file.name).symlink_to(file.resolve())
            return AutoModelForCausalLM.from_pretrained(whole, dtype=torch.float32).eval()
