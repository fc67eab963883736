"""`kpipe policy` and `kpipe warmstart`, as a person types them."""

from __future__ import annotations

import base64
import json
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner
from unit.policy.conftest import byte_tokenizer, random_model
from unit.train.filling import GROUPS_PER_STEP, Filled, fill, small_config, start

from kpipe.cli.app import app
from kpipe.errors import KpipeError, PolicyError, TrainError, UsageError
from kpipe.policy.files import digest
from kpipe.policy.logprobs import completion_logprobs
from kpipe.train import trainer

torch.set_num_threads(1)


@pytest.fixture
def trained(tmp_path: Path) -> Callable[..., Filled]:
    def make(steps: int, **train: Any) -> Filled:
        run = start(tmp_path, small_config(tmp_path / "out", steps=steps, **train))
        fill(run, steps * GROUPS_PER_STEP)
        trainer.main(run.url, run.run.name)
        return run

    return make


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """A run of three updates that nobody changes."""
    place = tmp_path_factory.mktemp("run")
    made = start(place, small_config(place / "out", steps=3, keep_last=1))
    fill(made, 3 * GROUPS_PER_STEP)
    trainer.main(made.url, made.run.name)
    return made


def kpipe(*words: object) -> str:
    """Output of a command. Raises the KpipeError that it ends with."""
    done = CliRunner().invoke(app, [str(w) for w in words])
    if isinstance(done.exception, KpipeError):
        raise done.exception
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def of(run: Filled) -> list[str]:
    return ["--run", run.run.name, "--db", run.url]


def test_list_names_every_version_and_what_is_left_of_it(run: Filled) -> None:
    listed = json.loads(kpipe("policy", "list", *of(run), "--json"))
    assert [v["step"] for v in listed] == [0, 1, 2, 3]
    assert [v["kept"] for v in listed] == ["weights", "weights", "weights", "with optimizer"]
    assert listed[0]["reward_mean"] is None
    assert all(isinstance(v["reward_mean"], float) for v in listed[1:])
    table = kpipe("policy", "list", *of(run))
    assert "with optimizer" in table
    assert str(run.output / run.run.name) in table


def test_export_is_a_model_with_a_card_of_its_run(run: Filled, tmp_path: Path) -> None:
    to = tmp_path / "mine"
    kpipe("policy", "export", *of(run), "--to", to)
    source = run.output / run.run.name / "step-000003"
    model: Any = AutoModelForCausalLM.from_pretrained(to)
    assert torch.equal(
        model.model.embed_tokens.weight,
        load_file(source / "model.safetensors")["model.embed_tokens.weight"],
    )
    names = {p.name for p in to.iterdir()}
    assert "README.md" in names
    assert not names & {"trainer", "trainer_state.json", "kpipe.json"}
    card = (to / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert "| 3 |" in card
    assert "36 settled turns" in card
    assert str(run.output) not in card
    settings = tomllib.loads(card.split("```toml\n")[1].split("```")[0])
    assert settings["train"]["learning_rate"] == 1e-2
    assert settings["seed"] == 7
    with pytest.raises(UsageError, match="exists already"):
        kpipe("policy", "export", *of(run), "--to", to)


def test_an_earlier_version_and_one_that_is_not_there(run: Filled, tmp_path: Path) -> None:
    kpipe("policy", "export", *of(run), "--step", 1, "--to", tmp_path / "one")
    wanted = load_file(run.output / run.run.name / "step-000001" / "model.safetensors")
    found = load_file(tmp_path / "one" / "model.safetensors")
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    with pytest.raises(UsageError, match="no policy version 9"):
        kpipe("policy", "export", *of(run), "--step", 9, "--to", tmp_path / "nine")
    with pytest.raises(UsageError, match="no run 'fild'") as caught:
        kpipe("policy", "list", "--run", "fild", "--db", run.url)
    assert "Near: filled" in caught.value.message


def test_a_damaged_checkpoint_is_not_published(trained: Callable[..., Filled], tmp_path: Path) -> None:
    run = trained(2)
    victim = run.output / run.run.name / "step-000002" / "config.json"
    victim.write_text(victim.read_text() + " ")
    with pytest.raises(TrainError, match=r"step-000002, is damaged") as caught:
        kpipe("policy", "export", *of(run), "--to", tmp_path / "two")
    assert "step-000001" in caught.value.fix
    assert not (tmp_path / "two").exists()


def test_an_adapter_is_exported_as_one_or_merged(trained: Callable[..., Filled], tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="peft is the extra 'lora'")
    run = trained(1, lora_rank=2, kl_beta=0.01)
    kpipe("policy", "export", *of(run), "--to", tmp_path / "adapter")
    kpipe("policy", "export", *of(run), "--merged", "--to", tmp_path / "whole")
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()
    assert not (tmp_path / "adapter" / "model.safetensors").exists()
    assert not (tmp_path / "whole" / "adapter_config.json").exists()
    adapter, whole = (AutoModelForCausalLM.from_pretrained(tmp_path / n) for n in ("adapter", "whole"))
    ids = torch.tensor([[5, 6, 7]])
    torch.testing.assert_close(adapter(ids).logits, whole(ids).logits, atol=1e-4, rtol=0)
    assert "library_name: peft" in (tmp_path / "adapter" / "README.md").read_text()


def test_push_uploads_what_export_writes(
    run: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kpipe("policy", "export", *of(run), "--to", tmp_path / "mine")
    monkeypatch.setenv("HF_TOKEN", "hf_of_a_test")
    with hub() as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        assert f"{address}/me/mine" in kpipe("policy", "push", *of(run), "--to", "me/mine")
    assert (Hub.created["organization"], Hub.created["name"]) == ("me", "mine")
    assert Hub.created.get("private") or Hub.created.get("visibility") == "private"
    assert Hub.files.keys() == {p.name for p in (tmp_path / "mine").iterdir()}
    for name, content in Hub.files.items():
        assert content == (tmp_path / "mine" / name).read_bytes(), name


def test_a_hub_that_refuses_is_one_sentence(run: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_of_a_test")
    with hub(refuses=True) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        with pytest.raises(PolicyError, match="The hub does not take me/mine") as caught:
            kpipe("policy", "push", *of(run), "--to", "me/mine")
    assert "hf_of_a_test" not in str(caught.value)


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's API as one upload needs; every file goes into the commit itself."""

    created: ClassVar[dict[str, Any]] = {}
    files: ClassVar[dict[str, bytes]] = {}
    refuses: ClassVar[bool] = False

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if Hub.refuses:
            self._answer({"error": "You may not"}, status=403)
        elif self.path == "/api/repos/create":
            Hub.created = json.loads(body)
            self._answer({"url": f"http://{self.headers['Host']}/me/mine"})
        elif "/preupload/" in self.path:
            asked = json.loads(body)["files"]
            plain = {"uploadMode": "regular", "shouldIgnore": False}
            self._answer({"files": [{"path": f["path"], **plain} for f in asked]})
        elif "/commit/" in self.path:
            rows = [json.loads(line) for line in body.splitlines()]
            values = [r["value"] for r in rows if r["key"] == "file"]
            Hub.files = {v["path"]: base64.b64decode(v["content"]) for v in values}
            self._answer(
                {
                    "commitUrl": f"http://{self.headers['Host']}/me/mine/commit/1",
                    "commitOid": "1",
                    "success": True,
                }
            )
        else:
            self._answer({})

    def do_GET(self) -> None:
        self._answer({"siblings": [], "id": "me/mine", "sha": "1", "name": "me"})

    def _answer(self, value: dict[str, Any], status: int = 200) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def hub(*, refuses: bool = False) -> Iterator[str]:
    Hub.refuses = refuses
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


# ---- kpipe warmstart ---------------------------------------------------------------------------
PROMPT, ANSWER = "How?", "Fuse it."
FAST = ("--set", "train.learning_rate=5e-3", "--set", "train.device=cpu", "--set", "train.threads=1")


@pytest.fixture
def talker(tmp_path: Path) -> Path:
    """A small policy that reads and writes bytes."""
    tokenizer = byte_tokenizer()
    random_model(len(tokenizer), eos_token_id=tokenizer.eos_token_id).save_pretrained(tmp_path / "talker")
    tokenizer.save_pretrained(tmp_path / "talker")
    return tmp_path / "talker"


def likes(path: Path, prompt: str, answer: str) -> float:
    """Mean log-probability that the policy gives to a token of the answer or its end."""
    tokenizer, model = byte_tokenizer(), AutoModelForCausalLM.from_pretrained(path)
    message = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    ids, said = tokenizer(text)["input_ids"], [*tokenizer(answer)["input_ids"], tokenizer.eos_token_id]
    with torch.no_grad():
        return completion_logprobs(model, [ids], [said], 1.0)[0].mean().item()


def pairs(tmp_path: Path, *lines: object) -> Path:
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize(
    "more", [[], ["--set", "train.packing=true", "--set", "train.gradient_checkpointing=true"]]
)
def test_it_learns_to_say_what_the_file_says(talker: Path, tmp_path: Path, more: list[str]) -> None:
    file = pairs(
        tmp_path, *[{"prompt": PROMPT, "suggestion": ANSWER}] * 4, {"prompt": "x" * 500, "suggestion": "y"}
    )
    options = ("--file", file, "--model", talker, "--epochs", 8, "--batch-size", 2, "--max-tokens", 300)
    said = kpipe("warmstart", "--to", tmp_path / "warm", *options, *FAST, *more)
    assert "Learned 4 examples, 1 longer ones left out" in said
    assert likes(tmp_path / "warm", PROMPT, ANSWER) > likes(talker, PROMPT, ANSWER) + 1
    kpipe("warmstart", "--to", tmp_path / "again", *options, *FAST, *more)
    assert digest(tmp_path / "warm") == digest(tmp_path / "again")


def test_the_best_turns_of_a_run_are_examples(
    trained: Callable[..., Filled], talker: Path, tmp_path: Path
) -> None:
    run = trained(1)
    words = ("warmstart", "--model", talker, "--epochs", 6, *of(run), *FAST)
    said = kpipe(*words, "--to", tmp_path / "warm")
    assert "Learned 1 examples" in said  # all of these turns have the same prompt and suggestion
    assert likes(tmp_path / "warm", "prompt", "do it") > likes(talker, "prompt", "do it")
    with pytest.raises(UsageError, match="a correct, timed kernel"):
        kpipe(*words, "--by", "speedup", "--to", tmp_path / "fast")
    with pytest.raises(UsageError, match="exists already"):
        kpipe(*words, "--to", tmp_path / "warm")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "holds no examples"),
        ("not json\n", "Line 1 of .* is no example"),
        ('{"prompt": "p"}\n', "Line 1 of .* is no example"),
        ('{"prompt": "p", "suggestion": 3}\n', "Line 1 of .* is no example"),
        ("[1]\n", "Line 1 of .* is no example"),
    ],
)
def test_a_file_of_something_else_is_refused(talker: Path, tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        kpipe("warmstart", "--to", tmp_path / "w", "--file", pairs(tmp_path, line), "--model", talker)
    assert not (tmp_path / "w").exists()


def test_what_is_missing_is_said(talker: Path, tmp_path: Path) -> None:
    file = pairs(tmp_path, {"prompt": PROMPT, "suggestion": ANSWER})
    with pytest.raises(UsageError, match="where the examples come from"):
        kpipe("warmstart", "--to", tmp_path / "w")
    with pytest.raises(UsageError, match="which policy learns"):
        kpipe("warmstart", "--to", tmp_path / "w", "--file", file)
    with pytest.raises(UsageError, match="cannot be read"):
        kpipe("warmstart", "--to", tmp_path / "w", "--file", tmp_path / "none", "--model", talker)
    with pytest.raises(TrainError, match="None of the 1 examples"):
        kpipe("warmstart", "--to", tmp_path / "w", "--file", file, "--model", talker, "--max-tokens", 2)
