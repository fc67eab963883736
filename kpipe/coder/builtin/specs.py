"""For each built-in problem: the family of kernels that implements it, and the Python around the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kpipe.coder.builtin.cpp import Kernel, Plan
from kpipe.coder.builtin.elementwise import Elementwise
from kpipe.coder.builtin.losses import MeanLoss
from kpipe.coder.builtin.networks import FeedForward
from kpipe.coder.builtin.products import MatmulEpilogue
from kpipe.coder.builtin.rows import LayerNorm, Softmax, UnitRows
from kpipe.coder.builtin.strided import ChannelRms, RowScan


class Family(Protocol):
    def applies(self) -> frozenset[str]:
        """The transformations that change this kernel; all others leave it alone."""

    def render(self, plan: Plan) -> Kernel: ...


@dataclass(frozen=True)
class Spec:
    """`init` and `setup` are the constructor's arguments and lines, `call` what is handed to the kernel."""

    family: Family
    arguments: str = "x"
    init: str = ""
    setup: tuple[str, ...] = ()
    call: str = "x"
    library_call: str = ""


NORM = (
    "self.norm = nn.LayerNorm(cols)",
    "nn.init.uniform_(self.norm.weight, 0.5, 1.5)",
    "nn.init.uniform_(self.norm.bias, -0.5, 0.5)",
)
BIAS = ("self.bias = nn.Parameter(torch.randn(cols))",)

SPECS: dict[str, Spec] = {
    "gelu": Spec(
        Elementwise(
            (
                lambda _: "0.7978845608f * (v + 0.044715f * v * v * v)",
                lambda plan: plan.tanh("v"),
                lambda _: "1.0f + v",
                lambda _: "0.5f * xr[j] * v",
            ),
            transcendental=True,
        )
    ),
    "swish": Spec(
        Elementwise((lambda plan: plan.sigmoid("v"), lambda _: "xr[j] * v"), transcendental=True),
    ),
    "bias_swish": Spec(
        Elementwise(
            (
                lambda _: "v + bias[j]",
                lambda plan: plan.sigmoid("v"),
                lambda _: "(xr[j] + bias[j]) * v",
                lambda _: "1.5f * v",
            ),
            columns=("bias",),
            transcendental=True,
        ),
        init="cols",
        setup=BIAS,
        call="x, self.bias",
    ),
    "scale_clamp": Spec(
        Elementwise(
            (
                lambda _: "v * scale[j]",
                lambda _: "v + shift[j]",
                lambda _: "v > -1.0f ? v : -1.0f",
                lambda _: "v < 1.0f ? v : 1.0f",
                lambda _: "v * v",
                lambda _: "v + 0.5f * xr[j]",
            ),
            columns=("scale", "shift"),
        ),
        init="cols",
        setup=(
            "self.scale = nn.Parameter(torch.rand(cols) + 0.5)",
            "self.shift = nn.Parameter(torch.randn(cols))",
        ),
        call="x, self.scale, self.shift",
    ),
    "gate_tanh": Spec(
        Elementwise(
            (lambda plan: plan.tanh("v"), lambda plan: f"v * ({plan.sigmoid('gr[j]')})"),
            others=("g",),
            transcendental=True,
        ),
        arguments="x, g",
        call="x, g",
    ),
    "softmax": Spec(Softmax()),
    "log_softmax": Spec(Softmax(log=True)),
    "layer_norm": Spec(LayerNorm(), init="cols", setup=NORM, call="x, self.norm.weight, self.norm.bias"),
    "residual_norm": Spec(
        LayerNorm(residual=True),
        arguments="x, r",
        init="cols",
        setup=NORM,
        call="x, r, self.norm.weight, self.norm.bias",
    ),
    "l2_norm": Spec(UnitRows()),
    "rms_norm": Spec(ChannelRms()),
    "cumsum": Spec(RowScan()),
    "hinge_loss": Spec(
        MeanLoss(("pr[j] * tr[j]", "1.0f - v", "v > 0.0f ? v : 0.0f")), arguments="p, t", call="p, t"
    ),
    "mse_loss": Spec(MeanLoss(("pr[j] - tr[j]", "v * v")), arguments="p, t", call="p, t"),
    "matmul_relu": Spec(
        MatmulEpilogue(("0.5f * v", "v > 0.0f ? v : 0.0f")),
        arguments="a, b",
        call="a, b",
        library_call="torch.mm(a, b)",
    ),
    "matmul_gelu": Spec(
        MatmulEpilogue(("v + bias[j]", "0.5f * v * (1.0f + (TANH(u)))"), columns=("bias",), tanh=True),
        arguments="a, b",
        init="cols",
        setup=BIAS,
        call="a, b, self.bias",
        library_call="torch.mm(a, b), self.bias",
    ),
    "mlp": Spec(
        FeedForward(),
        init="width, hidden",
        setup=("self.up = nn.Linear(width, hidden)", "self.down = nn.Linear(hidden, width)"),
        call="x, self.up.weight, self.up.bias, self.down.weight, self.down.bias",
    ),
    "gated_mlp": Spec(
        FeedForward(gated=True),
        init="width, hidden",
        setup=(
            "self.gate = nn.Linear(width, hidden)",
            "self.up = nn.Linear(width, hidden)",
            "self.down = nn.Linear(hidden, width)",
        ),
        call="x, self.gate.weight, self.gate.bias, self.up.weight, self.up.bias, self.down.weight, self.down.bias",
    ),
}
