import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

import kpipe
from kpipe import problems
from kpipe.config import Config, PolicyConfig
from kpipe.domain.prompt import State, load_template, render_prompt
from kpipe.errors import PolicyError
from kpipe.policy import SuggestRequest, digest, open_policy, prepare_base, tiny

ROOT = Path(kpipe.__file__).resolve().parents[1]
FEW = Config(policy=PolicyConfig(warmstart_steps=3, device="cpu", threads=1))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "run" / "step-000000"
    tiny.ensure(path, FEW)
    return path


def test_is_a_checkpoint_like_any_other(built: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(built)
    tokenizer = AutoTokenizer.from_pretrained(built)
    assert type(model).__name__ == "Qwen2ForCausalLM"
    assert 500_000 < sum(p.numel() for p in model.parameters()) < 1_000_000
    assert len(tokenizer) == model.config.vocab_size <= 1024
    assert tokenizer.decode([tokenizer.eos_token_id]) == "<|im_end|>"
    text = "Übung 1: tile\n\nthe loop; `a[i] = 3.5e-7`"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_speaks_in_qwens_chat_form(built: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(built)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hello"}], add_generation_prompt=True, tokenize=False
    )
    assert text == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert len(tokenizer("<|im_start|><|im_end|>")["input_ids"]) == 2


def test_prompts_of_an_episode_are_short(built: Path) -> None:
    """Time per update is proportional to it."""
    policy = open_policy(FEW.policy, built)
    template = load_template("compact")
    prompts = [render_prompt(template, State(p.name, "", "", "")) for p in problems.builtin()]
    said = policy.suggest([SuggestRequest(prompt, 0) for prompt in prompts])
    assert max(len(s.prompt_ids) for s in said) < 48


def test_what_is_there_is_kept(built: Path) -> None:
    before = {file.name: file.stat().st_mtime_ns for file in built.iterdir()}
    heard: list[float] = []
    assert tiny.ensure(built, FEW, heard.append) == digest(built)
    assert {file.name: file.stat().st_mtime_ns for file in built.iterdir()} == before
    assert heard == []
    assert sorted(p.name for p in built.parent.iterdir()) == [".step-000000.lock", "step-000000"]


def test_same_seed_same_policy_and_another_seed_another(built: Path, tmp_path: Path) -> None:
    heard: list[float] = []
    assert prepare_base(FEW, tmp_path / "same", heard.append) == digest(built)
    assert heard == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert tiny.ensure(tmp_path / "other", FEW.model_copy(update={"seed": 1})) != digest(built)


def test_other_recipe_or_damage_is_built_anew(built: Path, tmp_path: Path) -> None:
    path = tmp_path / "base"
    first = tiny.ensure(path, FEW.model_copy(update={"seed": 7}))
    assert tiny.ensure(path, FEW) == digest(path) == digest(built) != first
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\xff")
    assert digest(path) != digest(built)
    assert tiny.ensure(path, FEW) == digest(path) == digest(built)


CHILD = """
import sys
from pathlib import Path
from kpipe.config import Config, PolicyConfig
from kpipe.policy import tiny
config = Config(policy=PolicyConfig(warmstart_steps=3, device="cpu", threads=1))
print(tiny.ensure(Path(sys.argv[1]), config, lambda share: print(share, flush=True)))
"""


def start_child(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("lines", [1, 3])
def test_killed_in_the_middle_leaves_nothing_half(built: Path, tmp_path: Path, lines: int) -> None:
    path = tmp_path / "base"
    with start_child(path) as child:
        assert child.stdout
        for _ in range(lines):
            assert child.stdout.readline()
        os.kill(child.pid, signal.SIGKILL)
    if path.exists():
        assert digest(path) == digest(built)
    assert tiny.ensure(path, FEW) == digest(path) == digest(built)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".base.lock", "base"]


def test_two_processes_build_it_once(built: Path, tmp_path: Path) -> None:
    children = [start_child(tmp_path / "base") for _ in range(2)]
    outputs = [child.communicate()[0].split() for child in children]
    assert sorted(map(len, outputs)) == [1, 4]
    assert {output[-1] for output in outputs} == {digest(built)}


def test_unwritable_place_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(PolicyError, match="cannot be written: File exists") as caught:
        tiny.ensure(tmp_path / "file" / "base", FEW)
    assert "output_dir" in caught.value.fix


LIMITED = """
import resource, signal, sys
from pathlib import Path
from kpipe.config import Config, PolicyConfig
from kpipe.errors import PolicyError
from kpipe.policy import tiny
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    tiny.ensure(Path(sys.argv[1]), Config(policy=PolicyConfig(warmstart_steps=1, device="cpu", threads=1)))
except PolicyError as error:
    print(error)
"""


def test_weights_that_do_not_fit_on_the_disk_are_one_sentence(tmp_path: Path) -> None:
    """A limit on file sizes stands for the full disk: both fail inside safetensors."""
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "base")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"The policy directory {tmp_path / 'base'} cannot be written: ")
    assert not (tmp_path / "base").exists()


def test_importing_the_port_is_cheap() -> None:
    code = "import sys, kpipe.policy; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
