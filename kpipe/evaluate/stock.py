"""Build one module with torch's own load_inline: `python stock.py REQUEST.json OUTPUT_DIR`. The judge of last resort."""

from __future__ import annotations

import json
import sys


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as f:
        request = json.load(f)
    from torch.utils.cpp_extension import load_inline

    try:
        load_inline(
            name=request["name"],
            cpp_sources=request["cpp_sources"],
            cuda_sources=request["cuda_sources"] or None,
            functions=request["functions"] or None,
            extra_cflags=request["extra_cflags"],
            extra_cuda_cflags=request["extra_cuda_cflags"],
            extra_ldflags=request["extra_ldflags"],
            with_cuda=request["with_cuda"],
            build_directory=sys.argv[2],
        )
    except Exception as error:
        print(error)
        sys.exit(1)


if __name__ == "__main__":
    main()
