"""The shim's table of operators, and the C++ that is made from it.

`operators.txt` has names only. Their signatures come from the headers of the installed torch, so that overloads and
default arguments are that version's. Made from them: declarations for kernels, definitions for the runtime library.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kpipe.assets import asset

NAMESPACE = "kpipe_shim"
_TYPES = {
    "const at::Tensor &": "const Tensor&",
    "at::Tensor &": "Tensor&",
    "const ::std::optional<at::Tensor> &": "const std::optional<Tensor>&",
    "at::IntArrayRef": "IntArrayRef",
    "at::OptionalIntArrayRef": "OptionalIntArrayRef",
    "at::TensorList": "TensorList",
    "const at::ITensorListRef &": "TensorList",
    "at::TensorOptions": "TensorOptions",
    "at::ScalarType": "ScalarType",
    "at::MemoryFormat": "MemoryFormat",
    "at::Device": "Device",
    "const at::Scalar &": "const Scalar&",
    "const ::std::optional<at::Scalar> &": "const std::optional<Scalar>&",
    "::std::optional<at::ScalarType>": "std::optional<ScalarType>",
    "::std::optional<at::MemoryFormat>": "std::optional<MemoryFormat>",
    "::std::optional<int64_t>": "std::optional<int64_t>",
    "::std::optional<double>": "std::optional<double>",
    "::std::optional<bool>": "std::optional<bool>",
    "c10::string_view": "Text",
    "::std::optional<c10::string_view>": "std::optional<Text>",
    "int64_t": "int64_t",
    "double": "double",
    "bool": "bool",
}
_RESULTS = {
    "at::Tensor": "Tensor",
    "at::Tensor &": "Tensor&",
    "const at::Tensor &": "const Tensor&",
    "::std::vector<at::Tensor>": "std::vector<Tensor>",
    "at::Scalar": "Scalar",
    "at::ScalarType": "ScalarType",
    "bool": "bool",
    "int64_t": "int64_t",
    "double": "double",
    "void": "void",
} | {
    f"::std::tuple<{','.join(['at::Tensor'] * n)}>": f"std::tuple<{', '.join(['Tensor'] * n)}>"
    for n in (2, 3, 4)
}

_METHOD = re.compile(r"^  (?P<result>[\w:<>, &]+?) (?P<name>\w+)\((?P<parameters>.*)\) const;$", re.M)
_FUNCTION = re.compile(r"^inline (?P<result>[\w:<>, &]+?) (?P<name>\w+)\((?P<parameters>.*)\) \{$", re.M)
_PARAMETER = re.compile(r"(?P<type>.+?) ?(?P<name>\w+)(?: ?= ?(?P<default>.+))?")
_DISPATCH = re.compile(r"^#define (AT_DISPATCH_\w+)\((?:[^\n]*\\\n)*[^\n]*\n", re.M)
_NOT_DISPATCHED = re.compile(r"AT_DISPATCH_(?:CASE|SWITCH)$|QINT|TMPL")


@dataclass(frozen=True, slots=True)
class Parameter:
    type: str
    name: str
    default: str | None


@dataclass(frozen=True, slots=True)
class Operator:
    """One overload, in the shim's types. `kind` is method, function or factory."""

    kind: str
    name: str
    result: str
    parameters: tuple[Parameter, ...]

    def declaration(self) -> str:
        listed = ", ".join(_declared(p) for p in self.parameters)
        return f"{self.result} {self.name}({listed}){' const' * (self.kind == 'method')};"

    def definition(self) -> str:
        """For the runtime library: the real operator, called with the real counterparts of the arguments."""
        listed = ", ".join(f"{p.type} {p.name}" for p in self.parameters)
        arguments = ", ".join(f"real({p.name})" for p in self.parameters)
        scope, callee, const = {
            "method": ("Tensor::", f"real(*this).{self.name}", " const"),
            "function": ("", f"at::{self.name}", ""),
            "factory": ("factories::", f"torch::{self.name}", ""),
        }[self.kind]
        call = f"{callee}({arguments})"
        if self.result.endswith("&"):  # it returns what it was given
            itself = "const_cast<Tensor&>(*this)" if self.kind == "method" else self.parameters[0].name
            body = f"{call}; return {itself};"
        else:
            body = f"{call};" if self.result == "void" else f"return shim({call});"
        return f"{self.result} {scope}{self.name}({listed}){const} {{ {body} }}"


def names() -> dict[str, tuple[str, ...]]:
    """Kind to the names of the table."""
    found: dict[str, list[str]] = {"method": [], "function": [], "factory": []}
    for line in _lines("operators.txt"):
        kinds, _, listed = line.partition(":")
        for kind in kinds.split():
            found[kind] += listed.split()
    return {kind: tuple(sorted(set(listed))) for kind, listed in found.items()}


def operators(torch_include: Path) -> list[Operator]:
    """Every overload of the table that the shim can express."""
    table = names()
    out = list(_matching("method", _METHOD, torch_include / "ATen/core/TensorBody.h", set(table["method"])))
    for name in table["function"]:
        out += _matching("function", _FUNCTION, torch_include / f"ATen/ops/{name.rstrip('_')}.h", {name})
    factories = torch_include / "torch/csrc/autograd/generated/variable_factories.h"
    out += _matching("factory", _FUNCTION, factories, set(table["factory"]))
    return list(dict.fromkeys(out))


def foreign_functions(torch_include: Path) -> frozenset[str]:
    """Functions of namespace at that the shim has not: a kernel that defines one of that name is not for the shim."""
    here = set(names()["function"])
    files = {path.stem for path in (torch_include / "ATen/ops").glob("*.h")}
    helpers = re.compile(r"_(?:ops|native|dispatch|meta)$")
    return frozenset(name for name in files if not helpers.search(name)) - here


def write(torch_include: Path, folder: Path) -> None:
    """Put the generated headers, and one that brings the shim for each of torch's, into `folder`."""
    made = operators(torch_include)
    for kind, plural in (("method", "methods"), ("function", "functions"), ("factory", "factories")):
        lines = [o.declaration() for o in made if o.kind == kind]
        (folder / f"kpipe_shim_{plural}.inc").write_text("\n".join(lines) + "\n")
    using = "".join(f"using {NAMESPACE}::factories::{name};\n" for name in names()["factory"])
    (folder / "kpipe_shim_torch.inc").write_text(using)
    (folder / "kpipe_shim_definitions.inc").write_text("\n".join(o.definition() for o in made) + "\n")
    (folder / "kpipe_shim_dispatch.inc").write_text(_dispatch_macros(torch_include))
    for header, shim in _stand_ins().items():
        if any(
            (root / header).exists() for root in (torch_include / "torch/csrc/api/include", torch_include)
        ):
            (folder / header).parent.mkdir(parents=True, exist_ok=True)
            (folder / header).write_text(f"#include <{shim}>\n")
    (folder / "torch/headeronly").symlink_to(torch_include / "torch/headeronly")


def _stand_ins() -> dict[str, str]:
    """Header of torch to the header of the shim that stands in for it."""
    found = {f"ATen/ops/{name.rstrip('_')}.h": "kpipe_shim.h" for name in names()["function"]}
    for line in _lines("headers.txt"):
        shim, _, listed = line.partition(":")
        found |= dict.fromkeys(listed.split(), shim)
    return found


def _lines(table: str) -> list[str]:
    lines = asset(f"evaluate/shim/{table}").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def _matching(kind: str, pattern: re.Pattern[str], header: Path, wanted: set[str]) -> Iterator[Operator]:
    for found in pattern.finditer(header.read_text()) if header.exists() else ():
        if found["name"] in wanted and (result := _RESULTS.get(found["result"])):
            parameters = [_parameter(text) for text in _split(found["parameters"])]
            if all(parameters):
                yield Operator(kind, found["name"], result, tuple(p for p in parameters if p))


def _parameter(text: str) -> Parameter | None:
    found = _PARAMETER.fullmatch(text)
    if found is None or (known := _TYPES.get(found["type"])) is None:
        return None
    default = re.sub(r"(?:at|c10)::", "", found["default"]) if found["default"] else None
    return Parameter(known, found["name"], default)


def _declared(p: Parameter) -> str:
    return f"{p.type} {p.name}" + (f" = {p.default}" if p.default else "")


def _split(text: str) -> Iterator[str]:
    """Take a parameter list apart at the commas that are not inside brackets."""
    depth, start = 0, 0
    for i, c in enumerate(text):
        depth += (c in "<({") - (c in ">)}")
        if c == "," and depth == 0:
            yield text[start:i].strip()
            start = i + 1
    if text[start:].strip():
        yield text[start:].strip()


def _dispatch_macros(torch_include: Path) -> str:
    """torch's AT_DISPATCH_ macros as they are: all of them come down to the shim's CASE and SWITCH."""
    found = _DISPATCH.finditer((torch_include / "ATen/Dispatch.h").read_text())
    return "\n".join(m[0] for m in found if not _NOT_DISPATCHED.search(m[1]))
