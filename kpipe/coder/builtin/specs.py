"""For each built-in problem: the family of kernels that implements it, and what is handed to the kernel."""

from __future__ import annotations

from dataclasses import dataclass

from kpipe.coder.builtin.elementwise import TRANSCENDENTAL, Elementwise
from kpipe.coder.builtin.family import Family
from kpipe.coder.builtin.losses import MeanLoss
from kpipe.coder.builtin.networks import FeedForward, Recurrent
from kpipe.coder.builtin.products import PRODUCT, MatmulEpilogue
from kpipe.coder.builtin.rows import ResidualNorm, Softmax, UnitRows
from kpipe.coder.builtin.strided import ChannelRms, RowScan


@dataclass(frozen=True)
class Spec:
    """`call`: Python expressions in `ModelNew.forward`, one for each of the family's tensors."""

    family: Family
    call: tuple[str, ...] = ("x",)


RELU = "v > 0.0f ? v : 0.0f"

SPECS: dict[str, Spec] = {
    "gelu": Spec(Elementwise(("1.702f * v", "sigmoid(v)", "xr[j] * v"), TRANSCENDENTAL)),
    "gelu_tanh": Spec(
        Elementwise(
            (
                "0.7978845608f * (v + 0.044715f * v * v * v)",
                "hyperbolic_tangent(v)",
                "1.0f + v",
                "0.5f * xr[j] * v",
            ),
            TRANSCENDENTAL,
        )
    ),
    "gate_tanh": Spec(
        Elementwise(("hyperbolic_tangent(v)", "v * sigmoid(gr[j])"), TRANSCENDENTAL, rows=("g",)),
        call=("x", "g"),
    ),
    "bias_swish": Spec(
        Elementwise(
            ("v + bias[j]", "v * sigmoid(v)", "1.5f * v"),
            TRANSCENDENTAL,
            columns=("bias",),
        ),
        call=("x", "self.bias"),
    ),
    "scale_softsign": Spec(
        Elementwise(
            ("v * scale[j]", "v + shift[j]", "v / (1.0f + std::fabs((float)v))", "v + 0.5f * xr[j]"),
            columns=("scale", "shift"),
        ),
        call=("x", "self.scale", "self.shift"),
    ),
    "hinge_loss": Spec(MeanLoss(("pr[j] * tr[j]", "1.0f - v", RELU)), call=("p", "t")),
    "mse_loss": Spec(MeanLoss(("pr[j] - tr[j]", "v * v")), call=("p", "t")),
    "softmax": Spec(Softmax()),
    "log_softmax": Spec(Softmax(log=True)),
    "residual_norm": Spec(ResidualNorm(), call=("x", "r", "self.norm.weight", "self.norm.bias")),
    "l2_norm": Spec(UnitRows()),
    "rms_norm": Spec(ChannelRms()),
    "cumsum": Spec(RowScan()),
    "running_mean": Spec(RowScan("{v} / ({j} + 1)")),
    "matmul_relu": Spec(
        MatmulEpilogue(("v + c[j]", "0.5f * v", RELU, "v < 6.0f ? v : 6.0f"), ("c",), PRODUCT | {"wide"}),
        call=("a", "b", "self.bias"),
    ),
    "matmul_swish": Spec(
        MatmulEpilogue(("v + c[j]", "v * sigmoid(v)"), ("c",), PRODUCT | {"poly"}),
        call=("a", "b", "self.bias"),
    ),
    "mlp": Spec(FeedForward(), call=("x", "self.up", "self.bias", "self.down")),
    "rnn": Spec(Recurrent(), call=("x", "self.w", "self.u")),
    "gated_rnn": Spec(Recurrent(gated=True), call=("x", "self.w", "self.u", "self.wz", "self.uz")),
}
