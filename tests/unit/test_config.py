from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kpipe import config
from kpipe.config import Loaded, from_json, keys, load, presets, value_of
from kpipe.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def loaded(*overrides: str, **kwargs: Any) -> Loaded:
    return load(overrides=overrides, **{"environ": {}, **kwargs})


def refused(*overrides: str, **kwargs: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(*overrides, **kwargs)
    assert caught.value.fix
    return str(caught.value)


def test_without_anything_the_embedded_preset_holds() -> None:
    got = loaded()
    assert got.config.policy.kind == "tiny"
    assert got.config.coder.kind == "builtin"
    assert got.origin["train.batch_size"] == "preset embedded (default)"
    assert got.origin["train.weight_decay"] == "default"
    assert set(got.origin) == set(keys())
    assert not any(got.asked_for(key) for key in keys())


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    content = "seed = 1\n[train]\nlearning_rate = 2e-5\ngamma = 0.1\nkl_beta = 0.2\nmax_steps = 5\n"
    file.write_text(f'preset = "seed"\n{content}')
    environ = {"KPIPE_TRAIN__GAMMA": "0.2", "KPIPE_TRAIN__KL_BETA": "0.3", "KPIPE_DB": "sqlite:///x.db"}
    got = loaded("train.kl_beta=0.4", "train.kl_beta = 0.5", file=file, environ=environ)
    train = got.config.train
    assert (train.ppo_epochs, train.learning_rate, train.gamma, train.kl_beta) == (2, 2e-5, 0.2, 0.5)
    assert got.config.seed == 1
    assert {got.origin[f"train.{k}"] for k in ("max_steps", "learning_rate")} == {str(file)}
    assert got.origin["train.gamma"] == "environment variable KPIPE_TRAIN__GAMMA"
    assert got.origin["train.kl_beta"] == "--set"
    assert got.origin["train.mini_batch_size"] == "preset seed"
    assert got.origin["train.weight_decay"] == "default"
    assert got.asked_for("train.mini_batch_size")
    assert not got.asked_for("train.weight_decay")


def test_the_preset_of_the_command_wins_over_the_files(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('preset = "seed"\n')
    assert loaded(file=tmp_path / "a.toml", preset="kevin").config.collect.group_size == 16
    assert loaded(file=tmp_path / "a.toml").config.collect.group_size == 4


@pytest.mark.parametrize("name", presets())
def test_every_preset_loads_and_says_where_it_comes_from(name: str) -> None:
    got = loaded(preset=name)
    batch = got.config.collect.group_size * got.config.collect.groups_per_step
    assert got.config.train.batch_size == batch
    assert f"preset {name}" in got.origin.values()


def test_presets_build_on_each_other() -> None:
    kevin, seed = loaded(preset="kevin").config, loaded(preset="seed").config
    assert kevin.policy == seed.policy
    assert kevin.reward.not_compiled == 0.0
    assert seed.reward.not_compiled == -1.0
    assert (kevin.collect.group_size, kevin.collect.groups_per_step) == (16, 8)


def test_the_seed_preset_has_the_seeds_values() -> None:
    c = loaded(preset="seed").config
    train = (
        c.train.batch_size,
        c.train.mini_batch_size,
        c.train.gradient_accumulation_steps,
        c.train.ppo_epochs,
    )
    assert train == (16, 4, 2, 2)
    assert (c.train.learning_rate, c.train.gamma, c.train.max_steps) == (1e-5, 0.4, 100)
    assert c.collect.max_steps_per_episode == 4
    assert (c.reward.not_compiled, c.reward.incorrect, c.reward.correct) == (-1.0, -0.5, 0.3)
    assert (c.policy.model, c.coder.model) == ("Qwen/Qwen2-0.5B-Instruct", "gpt-4o")


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.toml")), ids=lambda p: p.stem)
def test_every_example_loads(file: Path) -> None:
    got = loaded(file=file)
    assert str(file) in got.origin.values()


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("train.learning_rate=1e-5", "train.learning_rate", 1e-5),
        ("train.learning_rate=1", "train.learning_rate", 1.0),
        ("policy.model=Qwen/Qwen2-0.5B-Instruct", "policy.model", "Qwen/Qwen2-0.5B-Instruct"),
        ('policy.model="a=b"', "policy.model", "a=b"),
        ("policy.model=/path/with=sign", "policy.model", "/path/with=sign"),
        ("coder.base_url=", "coder.base_url", ""),
        ("problems.levels=[1, 2]", "problems.levels", (1, 2)),
        ("problems.names=['gelu']", "problems.names", ("gelu",)),
        ("reward.use_lower_bound=true", "reward.use_lower_bound", True),
        ("seed=7", "seed", 7),
    ],
)
def test_values_on_the_command_line(text: str, key: str, value: object) -> None:
    assert value_of(loaded(text).config, key) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train.learning_rat=1", ["train.learning_rat ", "Did you mean train.learning_rate?", "--set"]),
        ("learning_rate=1", ["Did you mean train.learning_rate?"]),
        ("coder.lease_s=1", ["coder.lease_s", ".lease_s?"]),
        ("train=1", ["Unknown configuration key train "]),
        ("zzz=1", ["zzz (--set)."]),
        ("train.batch_size.x=1", ["Did you mean train.batch_size?"]),
        ("train.batch_size=true", ["train.batch_size = True", "integer"]),
        ("train.batch_size=16.0", ["train.batch_size = 16.0", "integer"]),
        ("train.batch_size=", ["train.batch_size = ''", "integer"]),
        ("train.learning_rate=fast", ["train.learning_rate = 'fast'", "number"]),
        ("train.learning_rate=nan", ["finite"]),
        ("train.gamma=1.5", ["train.gamma = 1.5", "less than or equal to 1"]),
        ("train.advantage=grop", ["train.advantage = 'grop'", "'grpo'"]),
        ("policy.prompt=sede", ["policy.prompt = 'sede'", "Did you mean seed?"]),
        ("policy.prompt=../presets/seed", ["no such template"]),
        ("policy.model=1", ["policy.model = 1", "string"]),
        ("problems.levels=1", ["problems.levels = 1", "list"]),
        ("problems.levels=['a']", ["problems.levels = 'a'", "integer"]),
        ("reward.use_lower_bound=1", ["reward.use_lower_bound = 1"]),
        ("train.gamma", ["not of the form key=value"]),
        ("=3", ["not of the form key=value"]),
    ],
)
def test_mistakes_on_the_command_line(text: str, words: list[str]) -> None:
    message = refused(text)
    for word in words:
        assert word in message
    assert "--set" in message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[collect]\ngroup_sise = 4\n", ["collect.group_sise", "Did you mean collect.group_size?"]),
        ("[colect]\n", ["colect"]),
        ("[colect]\ngroup_size = 4\n", ["Did you mean collect.group_size?"]),
        ('[train]\nlearning_rate = "1e-5"\n', ["train.learning_rate = '1e-5'", "number"]),
        ("[train]\nmax_steps = 0\n", ["train.max_steps = 0", "greater than or equal to 1"]),
        ("[train\n", ["TOML"]),
        ("[train]\ngamma = 1\ngamma = 2\n", ["TOML"]),
    ],
)
def test_mistakes_in_a_file_name_the_file(content: str, words: list[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(content)
    message = refused(file=file)
    for word in (str(file), *words):
        assert word in message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "no configuration file" in refused(file=tmp_path / "none.toml")
    assert str(tmp_path) in refused(file=tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    assert "TOML" in refused(file=tmp_path / "binary.toml")


def test_mistakes_in_the_environment_name_the_variable() -> None:
    assert "KPIPE_TRAIN__GAMA" in refused(environ={"KPIPE_TRAIN__GAMA": "1"})
    assert "KPIPE_TRAIN__GAMMA" in refused(environ={"KPIPE_TRAIN__GAMMA": "high"})


def test_the_real_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KPIPE_CODER__MAX_TOKENS", "77")
    assert load().config.coder.max_tokens == 77


def test_unknown_preset(tmp_path: Path) -> None:
    assert "Did you mean kevin?" in refused(preset="kevni")
    (tmp_path / "a.toml").write_text("preset = 3\n")
    assert "'3'" in refused(file=tmp_path / "a.toml")


def test_batch_size_is_that_of_the_groups() -> None:
    assert "train.batch_size=32" in refused("collect.group_size=8", preset="seed")
    assert "train.batch_size = 7 (--set)" in refused("train.batch_size=7")
    assert loaded("collect.group_size=8", "train.batch_size=32", preset="seed").config.train.batch_size == 32


@pytest.mark.parametrize(
    "text",
    [
        "coder.api_key_env=sk-proj-0123456789",
        "coder.api_key_env= sk-proj-0123456789",
        "coder.base_url=https://me:sk-proj-0123456789@host/v1",
        "coder.base_url=https://sk-proj-0123456789@host/v1",
        "coder.base_url=sk-proj-0123456789",
        "coder.base_url=ftp://host/sk-proj-0123456789",
        "coder.base_url=http://host:70000/sk-proj-0123456789",
        "coder.base_url=http://[sk-proj-0123456789",
        "coder.base_url=https://host/v1?api-key=sk-proj-0123456789",
        "coder.base_url=https://host/v1?api-version=1&Key=sk-proj-0123456789",
        "coder.base_url=https://host/v1?sk-proj-0123456789",
        "coder.base_url=https://host/v1#sk-proj-0123456789",
    ],
)
def test_a_key_in_the_wrong_place_is_refused_and_not_repeated(text: str, tmp_path: Path) -> None:
    message = refused(text)
    assert text.partition("=")[0] in message
    assert "0123456789" not in message
    section, name = text.partition("=")[0].split(".")
    (tmp_path / "a.toml").write_text(f"[{section}]\n{name} = '{text.partition('=')[2]}'\n")
    assert "0123456789" not in refused(file=tmp_path / "a.toml")


@pytest.mark.parametrize(
    "text",
    [
        f"seed={2**63}",
        "seed=99999999999999999999999",
        "problems.levels=[1, 99999999999999999999]",
        "problems.levels=[-99999999999999999999]",
        f"train.max_steps={10**30}",
    ],
)
def test_a_number_that_no_database_holds(text: str) -> None:
    assert "is too large" in refused(text)
    assert loaded(f"seed={2**63 - 1}").config.seed == 2**63 - 1


@pytest.mark.parametrize(
    "url", ["", "http://localhost:8000/v1", "https://x.example/openai/v1?api-version=1", "http://[::1]:1/"]
)
def test_addresses_of_coders(url: str) -> None:
    assert loaded(f"coder.base_url={url}").config.coder.base_url == url


def test_a_stored_configuration_comes_back() -> None:
    before = loaded("problems.levels=[1, 2]", "reward.speedup_cap=3", preset="kevin").config
    assert from_json(json.loads(json.dumps(before.model_dump(mode="json")))) == before


def test_a_stored_configuration_of_another_version_is_refused() -> None:
    with pytest.raises(ConfigError, match="the stored run"):
        from_json({"train": {"batch_size": "many"}})
    with pytest.raises(ConfigError, match="nonsense"):
        from_json({"train": {"nonsense": 1}})


def test_every_key_is_described() -> None:
    assert [key for key, field in config.fields() if not field.description] == []
