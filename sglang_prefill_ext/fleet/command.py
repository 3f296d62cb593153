"""`sglang-prefill fleet`: routers over engines that run already, or that Ray starts."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from typing import Annotated, Any

import typer

from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.fleet.settings import (
    Engines,
    Settings,
    engine_urls,
    reserved_ports,
    router_command,
)
from sglang_prefill_ext.frontend.options import authorization
from sglang_prefill_ext.process.ports import joined
from sglang_prefill_ext.process.supervisor import supervise

logger = logging.getLogger(__name__)

_DEFAULTS = Settings()
_ON_RAY = "Engines on Ray"


def _ray(text: str, *, least: float | None = None) -> Any:
    """An option of engines on Ray."""
    return typer.Option(help=text, min=least, rich_help_panel=_ON_RAY)


def fleet(
    context: typer.Context,
    engines: Annotated[
        str, typer.Option(help="URLs of running engines, such as http://a:30000,http://b:30000.")
    ] = "",
    host: Annotated[str, typer.Option(help="Address to listen at.")] = _DEFAULTS.host,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen at; 0 takes a free one.")
    ] = _DEFAULTS.port,
    grpc_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port of the gRPC API prefill_ext.v1; 0 takes a free one. Default: no gRPC.",
        ),
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="Number of router processes.")] = 1,
    api_key: Annotated[
        str, typer.Option(envvar="SGLANG_API_KEY", help="Key of the engines; clients send it too.")
    ] = "",
    extra_work: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1000,
            help="Most extra work that dividing a request may cause, as a share of its own "
            "work; 0 never divides. By default it depends on how busy the fleet is.",
        ),
    ] = None,
    grace_s: Annotated[
        float,
        typer.Option(min=0, max=1_000_000, help="Seconds that running requests get on SIGTERM."),
    ] = _DEFAULTS.grace_s,
    keep_alive_s: Annotated[
        int,
        typer.Option(
            min=1,
            max=1_000_000,
            envvar="SGLANG_TIMEOUT_KEEP_ALIVE",
            help="Seconds for which a client's idle connection stays open.",
        ),
    ] = _DEFAULTS.keep_alive_s,
    model_path: Annotated[
        str, _ray("Start engines of this model on Ray. Flags of sglang serve are passed on.")
    ] = "",
    replicas: Annotated[
        str, _ray("Number of engines, or a range such as 1-8 by load; 0 ends the fleet.")
    ] = "1",
    address: Annotated[
        str, _ray("Ray cluster to join: auto or host:6379. Default: a new one on this machine.")
    ] = "",
    cpus_per_replica: Annotated[float, _ray("CPU cores of an engine.", least=0)] = 1.0,
    target_tokens: Annotated[
        int, _ray("With a range: outstanding tokens that an engine should have.", least=1)
    ] = 65536,
    scale_up_s: Annotated[
        float, _ray("Seconds for which more engines must be needed.", least=0)
    ] = 30.0,
    scale_down_s: Annotated[
        float, _ray("Seconds for which fewer engines must be needed.", least=0)
    ] = 600.0,
    drain_s: Annotated[
        float, _ray("Seconds that a leaving engine gets to finish its requests.", least=0)
    ] = 60.0,
    router_nodes: Annotated[int, _ray("Number of nodes with routers.", least=1)] = 1,
) -> None:
    """Run a router that divides requests over several engines.

    Give either --engines for running engines, or --model-path to start engines on Ray.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s fleet: %(message)s")
    settings = Settings(
        host=host,
        port=port,
        grpc_port=grpc_port,
        extra_work=extra_work,
        grace_s=grace_s,
        keep_alive_s=keep_alive_s,
    )
    if context.args and not model_path:
        flag = context.args[0].partition("=")[0]  # its value may be a key
        raise ConfigError(f"{flag}: no such option. Flags of SGLang need --model-path.")
    if bool(engines) == bool(model_path):
        raise ConfigError("Give either --engines, for running engines, or --model-path.")
    authorization(api_key)  # one that no header can hold is refused here
    if engines:
        _refuse_given(context)
        _over_running(settings, engines, processes, api_key)
        return
    on_ray = _on_ray()
    on_ray.run(
        on_ray.Launch(model_path, tuple(context.args), api_key, drain_s=drain_s),
        on_ray.Replicas.of(replicas),
        settings,
        address=address,
        cpus=cpus_per_replica,
        target_tokens=target_tokens,
        up_s=scale_up_s,
        down_s=scale_down_s,
        routers=router_nodes,
        processes=processes,
    )


def _refuse_given(context: typer.Context) -> None:
    """Raises: ConfigError: an option of engines on Ray is given, which would have no effect."""
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        given = source is not None and source.name == "COMMANDLINE"
        if given and getattr(option, "rich_help_panel", None) == _ON_RAY:
            raise ConfigError(
                f"{option.opts[0]}: it is about engines on Ray. Remove it, or give --model-path in "
                "place of --engines."
            )


def _over_running(settings: Settings, engines: str, processes: int, api_key: str) -> None:
    """Run routers over engines that run, until SIGTERM."""
    urls = engine_urls(engines)
    with (
        reserved_ports(settings) as settings,
        tempfile.TemporaryDirectory(prefix="prefill-fleet-") as own,
    ):
        command, env = router_command(settings, api_key, own)
        where = joined(settings.host, settings.port)
        if settings.grpc_port is not None:
            where += f", gRPC at {joined(settings.host, settings.grpc_port)}"
        logger.info("Listening at %s; routers: %d, engines: %d.", where, processes, len(urls))
        said = Engines(urls).to_line()
        asyncio.run(supervise(command, processes, grace_s=settings.grace_s, env=env, said=said))


def _on_ray() -> Any:
    """Raises: ConfigError: Ray is not installed."""
    try:
        from sglang_prefill_ext.fleet.ray_serve import run
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--model-path needs Ray, which is not installed ({error}). "
            "Install it with `pip install 'sglang-prefill-ext[fleet]'`."
        ) from error
    return run
