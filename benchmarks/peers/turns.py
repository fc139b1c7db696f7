"""Decode with each engine in short turns -> benchmarks/results/decode-turns.json.

    PYTHONPATH=benchmarks python -m peers.turns --peers ENVIRONMENT --models DIR --bundle DIR

A virtual machine may have phases in which its memory is a third slower, half a minute each. A whole round of
`peers` is longer than a phase, so engines meet different ones; a turn of all engines takes twelve seconds.
The ratios are medians over the turns of what stood side by side. `make bench-peers` makes what is read here.
"""

import dataclasses
import json
import sys
from pathlib import Path
from statistics import median

import click

from mothertongue.device import describe_device, read_bandwidth
from peers.rounds import Contestant, run_child

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "benchmarks" / "results" / "decode-turns.json"


@click.command()
@click.option("--peers", type=click.Path(path_type=Path), required=True)
@click.option("--models", type=click.Path(path_type=Path), required=True, help="Where `peers` converts.")
@click.option("--bundle", type=click.Path(path_type=Path), required=True)
@click.option("--threads", type=click.IntRange(1), default=2, show_default=True)
@click.option("--turns", type=click.IntRange(1), default=9, show_default=True)
def main(peers: Path, models: Path, bundle: Path, threads: int, turns: int) -> None:
    """Measure how fast each engine decodes, in turn."""
    vocabulary = json.loads((models / "checkpoint" / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    theirs = peers.absolute() / "bin" / "python"
    contestants = [
        Contestant(name=name, engine=engine, path=str(path.absolute()), python=python, threads=threads)
        for name, engine, path, python in (
            ("mothertongue", "mothertongue", bundle, Path(sys.executable)),
            ("llamacpp_q8_0", "llamacpp", models / "model-q8_0.gguf", theirs),
            ("genai_int8", "genai", models / "genai-int8", theirs),
            ("genai_our_bundle", "genai", bundle, theirs),
        )
    ]
    rates: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    bandwidths = []
    for turn in range(turns):
        bandwidths.append(round(read_bandwidth(threads), 1))
        for contestant in contestants:
            task = dataclasses.asdict(contestant.task(vocabulary, decode_only=True))
            rates[contestant.name].append(
                round(run_child(contestant.python, "speed", task)["decode_tokens_per_s"], 1)
            )
        click.echo(f"turn {turn + 1} of {turns}: " + ", ".join(f"{n} {r[-1]}" for n, r in rates.items()))
    ours = rates["mothertongue"]
    found = {
        "command": "python -m peers.turns",
        "machine": {"cpu": describe_device().cpu, "threads": threads},
        "gb_per_s": bandwidths,
        "decode_tokens_per_s": rates,
        "decode_over": {
            name: round(median(a / b for a, b in zip(ours, other, strict=True)), 3)
            for name, other in rates.items()
            if name != "mothertongue"
        },
    }
    RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    click.echo(f"wrote {RESULT.relative_to(ROOT)}: {found['decode_over']}")


if __name__ == "__main__":
    main()
