"""`kpipe loopback`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def loopback(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8765,
    policy: Annotated[
        Path | None,
        typer.Option(help="Checkpoint whose token completions are served, in vLLM's and SGLang's shapes."),
    ] = None,
    name: Annotated[str, typer.Option(help="Name under which the checkpoint is served.")] = "policy",
    raw_logprobs: Annotated[
        bool, typer.Option("--raw-logprobs", help="Report log-probabilities before the temperature.")
    ] = False,
    model: Annotated[list[str] | None, typer.Option(help="Model that the coder answers for.")] = None,
    reply: Annotated[
        Path | None, typer.Option(help="File with the coder's reply; without it the built-in rules answer.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="The only key that is accepted; any without this.")] = None,
    rpm: Annotated[int | None, typer.Option(min=1, help="Requests per minute.")] = None,
    tpm: Annotated[int | None, typer.Option(min=1, help="Tokens per minute.")] = None,
) -> None:
    """Play an OpenAI-compatible coder, and a policy server, on this machine until Ctrl-C.

    Faults: header X-Loopback-Fault, query ?fault=, or POST /loopback/faults {"fault": "429:2", "times": 20}.
    Counts: GET /loopback.

    Example: kpipe loopback --port 8765
    """
    import asyncio

    asyncio.run(_serve(host, port, policy, name, raw_logprobs, model, reply, key, rpm, tpm))


async def _serve(
    host: str,
    port: int,
    policy: Path | None,
    name: str,
    raw_logprobs: bool,
    model: list[str] | None,
    reply: Path | None,
    key: str | None,
    rpm: int | None,
    tpm: int | None,
) -> None:
    import asyncio
    import signal

    from kpipe.loopback.completions import Completions, Quirks
    from kpipe.loopback.quota import Quota
    from kpipe.loopback.server import Loopback

    completions = None
    if policy is not None:
        from kpipe.loopback.engine import CheckpointEngine

        engine = CheckpointEngine(policy, name, processed=not raw_logprobs)
        completions = Completions(engine, Quirks(processed=not raw_logprobs))
    server = Loopback(
        host=host,
        port=port,
        policy=completions,
        key=key,
        quota=Quota(rpm, tpm),
        reply=reply.read_text(encoding="utf-8") if reply else None,
    )
    if model:
        server.models = tuple(model)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with server:
        typer.echo(f"Serving {', '.join(server.models)} at {server.url}", err=False)
        if completions:
            typer.echo(f"Serving the policy {name} at {server.url}/completions")
        await stop.wait()
