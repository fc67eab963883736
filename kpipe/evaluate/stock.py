"""Build one module with torch's own load_inline: `python stock.py REQUEST.json OUTPUT_DIR`. The judge of last resort."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as f:
        request = json.load(f)
    cpp_extension: Any = importlib.import_module("torch.utils.cpp_extension")

    # What was built belongs to an evaluation's sandbox: it must not be loaded here.
    cpp_extension._import_module_from_library = _not_loaded
    functions = request["functions"]
    try:
        cpp_extension.load_inline(
            name=request["name"],
            cpp_sources=request["cpp_sources"],
            cuda_sources=request["cuda_sources"] or None,
            functions=None if functions is None else dict(functions),
            extra_cflags=request["extra_cflags"],
            extra_cuda_cflags=request["extra_cuda_cflags"],
            extra_ldflags=request["extra_ldflags"],
            with_cuda=request["with_cuda"],
            with_pytorch_error_handling=request["torch_errors"],
            no_implicit_headers=not request["implicit_headers"],
            build_directory=sys.argv[2],
        )
    except Exception as error:  # whatever it is, it is why there is no module
        print(error)
        sys.exit(1)


def _not_loaded(*_: Any) -> None:
    return None


if __name__ == "__main__":
    main()
