"""The policy behind HTTP: says what the policy in process says, and refuses what cannot be trained on."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from policy_server import PolicyServer

from kpipe.collect.draining import Draining
from kpipe.collect.streamer import Streamer
from kpipe.config import Config, PolicyConfig
from kpipe.errors import PolicyError
from kpipe.policy import SuggestRequest, digest, open_policy, prepare_base
from kpipe.policy.conformance import temperature_applied
from kpipe.policy.server import ServerPolicy
from kpipe.store.records import PolicyVersion

Checkpoint = Callable[..., Path]
LOCAL = PolicyConfig(kind="local", device="cpu", max_new_tokens=10, threads=1, max_prompt_tokens=100)
REQUESTS = [SuggestRequest(text, seed) for seed, text in enumerate(["a", "tile it", "a", "b" * 40])]


@contextmanager
def serving(server: PolicyServer) -> Iterator[PolicyConfig]:
    """Serve from a thread; the configuration to reach it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner = web.AppRunner(server.app(), access_log=None, shutdown_timeout=0.1, handler_cancellation=True)

    async def start() -> int:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return int(runner.addresses[0][1])

    port = asyncio.run_coroutine_threadsafe(start(), loop).result()
    try:
        url = f"http://127.0.0.1:{port}/v1"
        yield LOCAL.model_copy(update={"kind": "server", "base_url": url, "timeout_s": 20.0})
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_says_exactly_what_the_model_in_process_says(engine: str, checkpoint: Checkpoint) -> None:
    path = checkpoint()
    with serving(PolicyServer(path, engine)) as config:
        config = config.model_copy(update={"temperature": 0.8})
        served = open_policy(config, path).suggest(REQUESTS)
    local = open_policy(LOCAL.model_copy(update={"temperature": 0.8}), path).suggest(REQUESTS)
    for ours, theirs in zip(served, local, strict=True):
        assert (ours.text, ours.finish_reason) == (theirs.text, theirs.finish_reason)
        assert (ours.prompt_ids, ours.completion_ids) == (theirs.prompt_ids, theirs.completion_ids)
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-5)
        assert ours.sampling["engine"] == f"{engine} 0.99"
        assert ours.sampling["tokenizer"] == theirs.sampling["tokenizer"]
        assert (ours.sampling["seed"], ours.sampling["temperature"]) == (theirs.sampling["seed"], 0.8)


@pytest.mark.parametrize(
    ("fault", "engine", "sentence", "fix"),
    [
        ("no log-probs", "vllm", "gives no log-probabilities", "--logprobs-mode processed_logprobs"),
        ("no log-probs", "sglang", "gives no log-probabilities", "SGLANG_RETURN_ORIGINAL_LOGPROB"),
        ("no ids", "vllm", "gives no token ids", "vLLM"),
        ("other lengths", "vllm", r"gives \d+ log-probabilities for \d+ tokens", "vLLM"),
        ("re-tokenizes", "vllm", "reads other tokens than it was sent", "vLLM"),
        ("raw", "vllm", "from before the temperature", "--logprobs-mode processed_logprobs"),
        ("raw", "sglang", "from before the temperature", "SGLANG_RETURN_ORIGINAL_LOGPROB"),
        ("unnormalised", "vllm", r"a probability of \d\.\d+ together", "vLLM"),
    ],
)
def test_a_server_that_cannot_be_trained_on(
    fault: str, engine: str, sentence: str, fix: str, checkpoint: Checkpoint
) -> None:
    path = checkpoint()
    with (
        serving(PolicyServer(path, engine, faults=frozenset({fault}))) as config,
        pytest.raises(PolicyError, match=sentence) as caught,
    ):
        open_policy(config, path)
    assert fix in caught.value.fix
    assert "\n" not in str(caught.value)


def test_a_missing_end_token_is_noticed(checkpoint: Checkpoint) -> None:
    path = checkpoint()
    server = PolicyServer(path)
    with serving(server) as config:
        policy = open_policy(config.model_copy(update={"max_new_tokens": 200}), path)
        server.faults = frozenset({"no end token"})
        with pytest.raises(PolicyError, match="leaves the end token out"):
            policy.suggest([SuggestRequest("a", seed) for seed in range(30)])


@pytest.mark.parametrize(
    ("hot", "cold", "expected"),
    [
        ({1: -1.0, 2: -2.0}, {1: -0.1, 2: -4.1}, "yes"),
        ({1: -1.0, 2: -2.0}, {1: -1.0, 2: -2.0}, "no"),
        ({1: -1.0, 2: -2.0, 3: -2.0}, {1: -1.03, 2: -1.97, 4: -1.0}, "no"),
        ({1: -1.0, 2: -1.0}, {1: -1.0, 2: -1.0}, "unknown"),
        ({1: -0.9}, {1: -0.1}, "yes"),
        ({1: -0.9}, {1: -0.91}, "no"),
        ({1: -0.001}, {1: -0.001}, "unknown"),
        ({1: -5.0}, {2: -5.0}, "unknown"),
    ],
)
def test_was_the_temperature_applied(hot: dict[int, float], cold: dict[int, float], expected: str) -> None:
    assert temperature_applied(hot, cold) == expected


def test_a_server_without_top_log_probs_will_do(checkpoint: Checkpoint) -> None:
    path = checkpoint()
    with serving(PolicyServer(path, faults=frozenset({"no top"}))) as config:
        assert len(open_policy(config, path).suggest(REQUESTS)) == len(REQUESTS)


def test_an_unreachable_server(checkpoint: Checkpoint) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        config = LOCAL.model_copy(update={"kind": "server", "base_url": f"http://127.0.0.1:{port}/v1"})
        with pytest.raises(PolicyError, match=f"at http://127.0.0.1:{port} cannot be used") as caught:
            open_policy(config, checkpoint())
    assert "policy.base_url" in caught.value.fix


def test_no_address(checkpoint: Checkpoint) -> None:
    with pytest.raises(PolicyError, match="needs the server's address"):
        open_policy(LOCAL.model_copy(update={"kind": "server"}), checkpoint())


def test_key(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    path, secret = checkpoint(), "sk-secret-0123"
    with serving(PolicyServer(path, key=secret)) as config:
        with pytest.raises(PolicyError, match="refuses the key") as caught:
            open_policy(config, path)
        assert secret not in str(caught.value)
        config = config.model_copy(update={"api_key_env": "POLICY_KEY"})
        with pytest.raises(PolicyError, match=r"POLICY_KEY .* is not set"):
            open_policy(config, path)
        monkeypatch.setenv("POLICY_KEY", secret)
        assert open_policy(config, path).suggest(REQUESTS[:1])


def test_unknown_model(checkpoint: Checkpoint) -> None:
    path = checkpoint()
    with (
        serving(PolicyServer(path)) as config,
        pytest.raises(PolicyError, match="does not serve 'other', but served"),
    ):
        open_policy(config.model_copy(update={"served_model": "other"}), path)


def test_no_chat_template(checkpoint: Checkpoint) -> None:
    path = checkpoint()
    for file in path.glob("chat_template*"):
        file.unlink()
    with serving(PolicyServer(path)) as config, pytest.raises(PolicyError, match="no chat template"):
        open_policy(config, path)


def test_the_servers_context_limits_the_prompt(checkpoint: Checkpoint) -> None:
    path = checkpoint()
    with serving(PolicyServer(path, context=70)) as config:
        policy = open_policy(config, path)
        assert policy.room(["a"])[0] > 0 > policy.room(["b" * 60])[0]
        short, long = policy.suggest([REQUESTS[0], SuggestRequest("b" * 60, 0)])
        assert (short.finish_reason != "prompt_too_long", long.finish_reason) == (True, "prompt_too_long")
        (trimmed,) = policy.suggest([SuggestRequest("b" * 60, 0, ("b" * 50, "tile it", "a"))])
        assert (trimmed.prompt, trimmed.sampling["prompt_trims"]) == ("tile it", 2)
    with (
        serving(PolicyServer(path, context=10)) as config,
        pytest.raises(PolicyError, match="context of 10 tokens leaves nothing"),
    ):
        open_policy(config, path)


def test_it_is_asked_again_when_it_is_out_of_breath(checkpoint: Checkpoint) -> None:
    path = checkpoint()
    server = PolicyServer(path)
    with serving(server) as config:
        policy = open_policy(config, path)
        server.failing = 2
        assert len(policy.suggest(REQUESTS)) == len(REQUESTS)
        server.failing = 10**6
        impatient = ServerPolicy.__new__(ServerPolicy)
        impatient.__dict__.update(policy.__dict__)
        impatient.config = config.model_copy(update={"timeout_s": 0.3})
        with pytest.raises(PolicyError, match="503: out of breath"):
            impatient.suggest(REQUESTS[:1])


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_new_weights_are_loaded_into_the_server(engine: str, checkpoint: Checkpoint) -> None:
    old, new = checkpoint("old"), checkpoint("new", seed=1)
    server = PolicyServer(old, engine)
    with serving(server) as config:
        policy = open_policy(config, old)
        before = [s.completion_ids for s in policy.suggest(REQUESTS)]
        server.calls.clear()
        policy.load(str(new), 3)
        after = [s.completion_ids for s in policy.suggest(REQUESTS)]
    assert policy.version == 3
    assert after != before
    assert after == [s.completion_ids for s in open_policy(LOCAL, new).suggest(REQUESTS)]
    reload = ["/pause", "/collective_rpc", "/reset_prefix_cache", "/resume"]
    assert server.calls == (reload if engine == "vllm" else ["/update_weights_from_disk"])


def test_a_resumed_run_finds_its_version_in_the_server(checkpoint: Checkpoint) -> None:
    """The server was restarted meanwhile and serves the base model."""
    base, newest = checkpoint("base"), checkpoint("newest", seed=1)
    with serving(PolicyServer(base)) as config:
        said = open_policy(config, newest, 5).suggest(REQUESTS)
    assert [s.completion_ids for s in said] == [
        s.completion_ids for s in open_policy(LOCAL, newest).suggest(REQUESTS)
    ]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_weights_that_the_server_does_not_see(engine: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = checkpoint()
    server = PolicyServer(path, engine)
    with serving(server) as config:
        policy = open_policy(config, path)
        with pytest.raises(PolicyError, match=r"does not load the weights in .*gone") as caught:
            policy.load(str(tmp_path / "gone"), 1)
    assert "output_dir" in caught.value.fix
    assert policy.version == 0
    if engine == "vllm":
        assert server.calls[-1] == "/resume", "a server is never left paused"


def test_a_server_that_takes_no_weights(checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture) -> None:
    path = checkpoint()
    with serving(PolicyServer(path, faults=frozenset({"no dev mode"}))) as config:
        open_policy(config, path)
        assert "VLLM_SERVER_DEV_MODE=1" in caplog.text
        with pytest.raises(PolicyError, match="does not load the weights"):
            open_policy(config, path, 1)


def adapter(path: Path) -> Path:
    """The double loads a whole checkpoint for an adapter; so does who reads it here."""
    (path / "adapter_config.json").write_text("{}")
    return path


def whole(path: Path) -> Path:
    """The same weights, as what they are."""
    (path / "adapter_config.json").unlink(missing_ok=True)
    return path


def test_an_adapter_gets_a_new_name_per_version(checkpoint: Checkpoint) -> None:
    base, first, second = checkpoint("base"), checkpoint("1", seed=1), checkpoint("2", seed=2)
    server = PolicyServer(base)
    with serving(server) as config:
        policy = open_policy(config, base)
        names = [policy.name]
        for version, path in ((1, first), (2, second), (2, second)):
            policy.load(str(adapter(path)), version)
            names.append(policy.name)
            said = [s.completion_ids for s in policy.suggest(REQUESTS)]
            assert said == [s.completion_ids for s in open_policy(LOCAL, whole(path)).suggest(REQUESTS)]
    assert names[0] == "served"
    assert len({*names}) == 3
    assert names[2] == names[3]


class Published:
    def __init__(self, path: Path) -> None:
        self.path, self.step = path, 0

    def version(self) -> PolicyVersion:
        return PolicyVersion(100 + self.step, 1, self.step, str(self.path), "d")

    async def latest(self) -> PolicyVersion:
        return self.version()


async def opened(config: PolicyConfig, path: Path) -> tuple[Streamer, Published, asyncio.Task[None]]:
    policy: Any = await asyncio.to_thread(open_policy, config, path)
    published = Published(path)
    streamer = Streamer(policy, published.version(), published.latest)
    return streamer, published, asyncio.create_task(streamer.run())


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("kind", ["weights", "adapter"])
async def test_every_turn_is_of_the_version_that_it_tells(kind: str, checkpoint: Checkpoint) -> None:
    old, new = checkpoint("old"), checkpoint("new", seed=1)
    if kind == "adapter":
        adapter(new)
    server = PolicyServer(old, delay_s=0.05)
    with serving(server) as config:
        streamer, published, task = await opened(config, old)
        early = [asyncio.create_task(streamer.suggest(r)) for r in REQUESTS]
        await server.until_busy(len(REQUESTS))
        server.reloaded_while_busy = False
        published.path, published.step = new, 4
        late = await asyncio.gather(*(streamer.suggest(r) for r in REQUESTS))
        first = await asyncio.gather(*early)
        await stop(task)
    assert {version for _, version in first} == {100}
    assert {version for _, version in late} == {104}
    for said, path in ((first, old), (late, new)):
        local = open_policy(LOCAL, whole(path)).suggest(REQUESTS)
        assert [s.completion_ids for s, _ in said] == [s.completion_ids for s in local]
    assert not server.reloaded_while_busy


async def test_concurrency_is_limited(checkpoint: Checkpoint) -> None:
    path = checkpoint()
    server = PolicyServer(path, delay_s=0.02)
    with serving(server) as config:
        streamer, _, task = await opened(config.model_copy(update={"concurrency": 3}), path)
        server.most_busy = 0
        await asyncio.gather(*(streamer.suggest(SuggestRequest("a", seed)) for seed in range(12)))
        await stop(task)
    assert server.most_busy == 3


async def test_draining_waits_for_no_server(checkpoint: Checkpoint) -> None:
    path = checkpoint()
    server = PolicyServer(path)
    with serving(server) as config:
        streamer, _, task = await opened(config, path)
        server.delay_s = 60.0
        waiting = [asyncio.create_task(streamer.suggest(r)) for r in REQUESTS]
        await server.until_busy(len(REQUESTS))
        streamer.drain()
        for request in waiting:
            with pytest.raises(Draining):
                await request
        with pytest.raises(Draining):
            await streamer.suggest(REQUESTS[0])
        await stop(task)


def test_base_of_a_served_model(checkpoint: Checkpoint, tmp_path: Path) -> None:
    source = checkpoint()
    served = {"kind": "server", "model": str(source), "base_url": "http://127.0.0.1:1/v1"}
    config = Config(policy=LOCAL.model_copy(update=served))
    assert prepare_base(config, tmp_path / "base") == digest(source)
    (source / "model.safetensors").unlink()
    with pytest.raises(PolicyError, match="no safetensors weights"):
        prepare_base(config, tmp_path / "other")
