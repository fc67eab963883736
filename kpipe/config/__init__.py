"""One frozen model per stage; values from defaults, a preset, a TOML file, the environment and --set.

Later sources win: default < preset < file < environment (KPIPE_TRAIN__LEARNING_RATE=1e-5) < --set
(train.learning_rate=1e-5). An unknown key or a wrong type is a ConfigError that names the key, the
nearest valid one and the place it came from.
"""

from kpipe.config.loading import (
    Loaded,
    fields,
    from_json,
    keys,
    load,
    presets,
    read_preset,
    value_of,
)
from kpipe.config.models import (
    CoderConfig,
    CollectConfig,
    Config,
    EvaluateConfig,
    PolicyConfig,
    ProblemsConfig,
    RewardConfig,
    TrainConfig,
)

DEFAULT_DB = "sqlite:///kpipe.db"

__all__ = [
    "DEFAULT_DB",
    "CoderConfig",
    "CollectConfig",
    "Config",
    "EvaluateConfig",
    "Loaded",
    "PolicyConfig",
    "ProblemsConfig",
    "RewardConfig",
    "TrainConfig",
    "fields",
    "from_json",
    "keys",
    "load",
    "presets",
    "read_preset",
    "value_of",
]
