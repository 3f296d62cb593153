"""Make the ranker, start the server, rank by both paths, show, and stop everything."""

from __future__ import annotations

import random
from importlib.util import find_spec
from itertools import product
from pathlib import Path

from rich.console import Console
from tokenizers import Tokenizer

from sglang_prefill_ext.client import PrefillClient
from sglang_prefill_ext.demo.measure import PATHS, Request, Scorer, measure_throughput, rank_by_both
from sglang_prefill_ext.demo.report import plot, show_costs, show_rankings, show_throughput
from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.local_server import LocalServer
from sglang_prefill_ext.modelmaker import catalogue, make_model
from sglang_prefill_ext.modelmaker.catalogue import ndcg

# Without the radix cache, a repeated prompt costs the same each time on the stock path.
_SERVER_FLAGS = (
    *("--enable-prefill-only", "--enable-metrics", "--enable-tokenizer-batch-encode"),
    *("--disable-radix-cache", "--log-level", "warning"),
)
_CLIENTS = (1, 4)
_TURNS, _SECONDS = 5, 0.8
_WARM_UP = 3


def run_demo(directory: Path, num_items: int, console: Console) -> None:
    """Run the demonstration; the model is kept in `directory` for the next time.

    Raises:
        ConfigError: matplotlib, which draws the plot, is not installed.
        ServerStartError: the server did not come up; its log is in `directory`.
    """
    if find_spec("matplotlib") is None:
        raise ConfigError(
            'The demo draws a plot, which needs matplotlib: pip install "sglang-prefill-ext[demo]".'
        )
    with console.status("Training the ranker (once) ...") as status:
        model = make_model("ranker", directory / "ranker", progress=status.update)
    server = LocalServer(model, _SERVER_FLAGS, log_path=directory / "server.log")
    try:
        with console.status("Starting SGLang ...") as status:
            server.start()
            server.wait_ready(on_tick=lambda s: status.update(f"Starting SGLang ... {s:.0f} s"))
            status.update("Looking for the fastest way to encode texts ...")
            server.wait_settled()
        _demonstrate(server.base_url, model, num_items, directory / "demo.png", console)
    finally:
        with console.status("Stopping the server ..."):
            server.stop()


def _demonstrate(
    base_url: str, model: Path, num_items: int, plot_file: Path, console: Console
) -> None:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    labels = [tokenizer.encode(w).ids[0] for w in (catalogue.YES_LABEL, catalogue.NO_LABEL)]
    scorer = Scorer(base_url, labels)
    (query, items, relevance), *others = _tasks(num_items)
    requests = [_request(other_query, other_items) for other_query, other_items, _ in others]
    with console.status("Ranking ..."):
        with PrefillClient(base_url) as client:
            for path, request in product(PATHS, requests[-_WARM_UP:]):
                scorer.score(client, path, request)
        rankings = rank_by_both(scorer, _request(query, items), requests)
    quality = {p: ndcg([relevance[i] for i in rankings[p].order], 10) for p in PATHS}
    show_rankings(console, query, items, relevance, rankings)
    show_costs(console, rankings, quality)
    with console.status("Measuring items per second ..."):
        throughput = {
            clients: measure_throughput(scorer, requests, clients, _TURNS, _SECONDS)
            for clients in _CLIENTS
        }
    show_throughput(console, throughput)
    plot(plot_file, rankings, throughput)
    console.print(f"\nPlot: {plot_file}")


def _tasks(num_items: int) -> list[tuple[str, list[str], list[int]]]:
    """Return held-out queries, each with items, some of them relevant, and the items' grades."""
    rng = random.Random("demo")
    tasks = []
    for query in catalogue.queries("test")[:40]:
        fitting = [item for item in catalogue.items() if item.category == query.category]
        rest = [item for item in catalogue.items() if item.category != query.category]
        some = rng.sample(fitting, min(len(fitting), num_items // 2))
        items = some + rng.sample(rest, num_items - len(some))
        rng.shuffle(items)
        grades = [catalogue.relevance(query, item) for item in items]
        tasks.append((query.text, [item.text for item in items], grades))
    return tasks


def _request(query: str, items: list[str]) -> Request:
    return catalogue.query_part(query), [catalogue.item_part(item) for item in items]
