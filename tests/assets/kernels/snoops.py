# reads whatever a kernel has no business to read; each success is told in the result's error
import os
import socket

import torch.nn as nn


def tries():
    yield "environment", lambda: [k for k in os.environ if "KPIPE" in k or "TOKEN" in k or k == "HOME"][0]
    yield "parent", lambda: open(f"/proc/{os.getppid()}/environ", "rb").read()
    yield "passwords", lambda: open("/etc/passwd").read()
    yield "write", lambda: open("/tmp/kernel-was-here", "w")
    yield "network", lambda: socket.create_connection(("127.0.0.1", 9), 0.2)
    yield "signal", lambda: os.kill(os.getppid(), 0)
    yield "run", lambda: os.execv("/bin/true", ["true"])
    yield "listing", lambda: os.listdir("/root") + os.listdir("/home")


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        found = []
        for name, attempt in tries():
            try:
                attempt()
                found.append(name)
            except (OSError, IndexError):
                pass
        raise RuntimeError(f"found: {found}")
