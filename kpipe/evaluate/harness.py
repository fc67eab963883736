"""What runs beside a kernel, in the kernel's own process. Imports torch and nothing of kpipe.

Everything here may be subverted by the kernel, so whoever talks to it believes only the bytes in the
output arena and that a reply came. It loads a module, builds its model, and maps inputs to outputs.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import linecache
import mmap
import os
import pickle
import socket
import struct
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils.cpp_extension

FILE_NAME = "kernel.py"
MAX_TEXT, MAX_REQUEST = 8_000, 65_536
_LENGTH = struct.Struct("<I")
Loaded = Callable[[list[Any], dict[str, Any]], Any]


def serve(name: str, source: bytes, builds: socket.socket, runs: socket.socket) -> None:
    """Load the module over `builds`, then answer requests on `runs` about its class `name`."""
    torch.set_num_threads(1)
    sys.stdout = sys.stderr = Capped()
    torch.utils.cpp_extension.load_inline = _stub(builds)
    torch.utils.cpp_extension.load = _no_load
    _write_frame(builds, {"confined": True})
    try:
        model = _execute(source).get(name)
    except BaseException as error:  # a kernel may raise anything, SystemExit included
        _write_frame(builds, {"error": _kind(error), "log": _explain(error)})
        return
    if not callable(model):
        _write_frame(builds, {"error": "missing", "log": f"The module defines no class {name}."})
        return
    _write_frame(builds, {"loaded": True})
    Subject(model, runs).serve()


class Capped(io.TextIOBase):
    """Text for descriptor 2, a pipe that nobody empties: what does not fit is dropped, never waited for."""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            os.write(2, str(text)[:MAX_TEXT].encode(errors="replace"))
        return len(text)


class Subject:
    """The model under test and its arena."""

    def __init__(self, model: Any, runs: socket.socket) -> None:
        self.make, self.runs = model, runs
        self.model: Any = None
        self.inputs: list[list[Any]] = []
        self.outputs: list[list[torch.Tensor]] = []
        self.prepared: Any = None

    @torch.no_grad()
    def serve(self) -> None:
        """Answer requests one by one. What is done around `calls` is timed with it, so it is little."""
        buffer = bytearray(MAX_REQUEST)
        room = socket.CMSG_SPACE(4 * struct.calcsize("i"))
        while size := (received := self.runs.recvmsg_into([buffer], room))[0]:
            request = json.loads(buffer[:size])
            try:
                answer = getattr(self, request.pop("op"))(*_descriptors(received[1]), **request)
            except BaseException as error:
                answer = {"error": _kind(error), "log": _explain(error)}
            self.runs.send(json.dumps(answer).encode())

    def construct(self, payload: int, seed: int) -> dict[str, Any]:
        """Build the model under `seed`, with the reference's parameters where names and shapes fit."""
        with open(payload, "rb") as file:
            arguments, state = pickle.loads(file.read())  # noqa: S301 - from the oracle
        torch.manual_seed(seed)
        self.model = self.make(*arguments)
        loaded = False
        if state and isinstance(self.model, torch.nn.Module):
            own = self.model.state_dict()
            if loaded := shapes(own) == shapes(state):
                self.model.load_state_dict(state)
        return {"parameters": "loaded" if loaded else "seeded"}

    def arena(self, inputs: int, outputs: int, layout: dict[str, Any], writable: bool) -> dict[str, Any]:
        """Map the shared memory of `slots` input sets and of their outputs."""
        slots = layout["slots"]
        rights = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        taken = views(mmap.mmap(inputs, 0, prot=rights), layout["inputs"], layout["input_step"], slots)
        self.outputs = views(mmap.mmap(outputs, 0), layout["outputs"], layout["output_step"], slots)
        self.inputs = [unflatten(layout["tree"], tensors) for tensors in taken]
        os.close(inputs)
        os.close(outputs)
        return {}

    def trial(self, slot: int, seed: int) -> dict[str, Any]:
        """One call, and what came out."""
        torch.manual_seed(seed)
        result = self.model(*self.inputs[slot])
        tensors = list(result) if isinstance(result, (tuple, list)) else [result]
        if not all(isinstance(t, torch.Tensor) for t in tensors):
            return {"type": " and ".join(sorted({type(t).__name__ for t in tensors}))}
        shown = [[str(t.dtype), list(t.shape)] for t in tensors]
        expected = [[str(t.dtype), list(t.shape)] for t in self.outputs[slot]]
        if shown == expected:
            for place, tensor in zip(self.outputs[slot], tensors, strict=True):
                place.copy_(tensor)
            self.prepared = result
        return {"outputs": shown}

    def calls(self, count: int, null: bool) -> dict[str, Any]:
        """Slots 0 to `count` in turn: the work that is timed. `null` hands out a ready result instead."""
        prepared = self.prepared
        model = (lambda *_: prepared) if null else self.model
        for arguments, places in zip(self.inputs[:count], self.outputs, strict=False):
            result = model(*arguments)
            if isinstance(result, torch.Tensor):
                places[0].copy_(result)
            else:
                for place, tensor in zip(places, result, strict=True):
                    place.copy_(tensor)
        return {}


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    return [fd for _, _, data in ancillary for (fd,) in struct.iter_unpack("i", data)]


def shapes(state: dict[str, Any]) -> dict[str, Any]:
    """Name to (shape, dtype): two models with equal ones can exchange parameters."""
    return {
        name: (value.shape, value.dtype) for name, value in state.items() if isinstance(value, torch.Tensor)
    }


def views(memory: mmap.mmap, tensors: Sequence[Any], step: int, slots: int) -> list[list[torch.Tensor]]:
    """For each slot its tensors, given as [dtype, shape, strides, offset in bytes, span in elements]."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that inputs are read-only is intended
        raw = torch.frombuffer(memory, dtype=torch.uint8)
    result = []
    for slot in range(slots):
        own = []
        for dtype, shape, strides, offset, span in tensors:
            kind = getattr(torch, dtype)
            start = slot * step + offset
            own.append(raw[start : start + span * kind.itemsize].view(kind).as_strided(shape, strides))
        result.append(own)
    return result


def flatten(value: Any, tensors: list[torch.Tensor]) -> Any:
    """A JSON tree of arguments in which tensors are numbers. Raises TypeError for anything unusual."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    if isinstance(value, (list, tuple)):
        items = [flatten(item, tensors) for item in value]
        return {"tuple" if isinstance(value, tuple) else "list": items}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    raise TypeError(f"an input of type {type(value).__name__}")


def unflatten(tree: Any, tensors: list[torch.Tensor]) -> Any:
    """The arguments that `flatten` took apart."""
    ((kind, value),) = tree.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "value":
        return value
    items = [unflatten(item, tensors) for item in value]
    return tuple(items) if kind == "tuple" else items


def _execute(source: bytes) -> dict[str, Any]:
    text = source.decode("utf-8")
    linecache.cache[FILE_NAME] = (len(text), None, text.splitlines(keepends=True), FILE_NAME)
    module = types.ModuleType("kernel")
    module.__file__ = FILE_NAME
    sys.modules["kernel"] = module
    exec(compile(text, FILE_NAME, "exec"), module.__dict__)  # noqa: S102 - this process exists for it
    return module.__dict__


def _stub(builds: socket.socket) -> Callable[..., Any]:
    """`load_inline` that has the module built elsewhere."""

    def load_inline(*args: Any, **kwargs: Any) -> Any:
        _write_frame(builds, {"build": [args, kwargs]})
        answer = _read_frame(builds)
        if "path" not in answer:
            raise RuntimeError(answer["log"])
        return _import(answer["name"], answer["path"])

    return load_inline


def _no_load(*_: Any, **__: Any) -> Any:
    raise RuntimeError("torch.utils.cpp_extension.load reads files, which a kernel may not: use load_inline.")


def _import(name: str, path: str) -> Any:
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _kind(error: BaseException) -> str:
    text = str(error)
    out_of_memory = isinstance(error, MemoryError) or "allocate memory" in text or "bad_alloc" in text
    return "oom" if out_of_memory else "exception"


def _explain(error: BaseException) -> str:
    """The error as Python prints it, without the frames of this file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, trace, limit=12))
    except Exception:  # an exception whose __str__ raises
        text = type(error).__name__
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT // 2] + "\n...\n" + text[-MAX_TEXT // 2 :]


def _write_frame(sock: socket.socket, message: dict[str, Any]) -> None:
    data = json.dumps(message, default=str).encode()
    sock.sendall(_LENGTH.pack(len(data)) + data)


def _read_frame(sock: socket.socket) -> Any:
    (size,) = _LENGTH.unpack(_read(sock, _LENGTH.size))
    return json.loads(_read(sock, size))


def _read(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            os._exit(0)  # whoever waits for this kernel is gone
        data += part
    return bytes(data)
