"""Compare our engine with others on the same checkpoint -> benchmarks/results/peers-MACHINE.json.

make bench-peers
PYTHONPATH=benchmarks python -m peers --peers ENVIRONMENT --checkpoint DIR --bundle DIR
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from mothertongue.device import Device, describe_device
from peers.conversion import ConversionFailed, Environments, OtherCheckpoint, convert
from peers.endurance import cold_command_s
from peers.rounds import Contestant, MeasurementFailed, run_child, run_rounds
from peers.score import FIGURES, GENAI, LLAMA, OURS, demands, engine_summary, ratios

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
CACHE = Path("~/.cache/mothertongue/peers").expanduser()
PEER_PACKAGES = (
    "llama-cpp-python",
    "onnxruntime-genai",
    "onnxruntime",
    "ctranslate2",
    "transformers",
    "numpy",
)
COMMAND = "make bench-peers"
QUIET_LOAD = 0.5


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


@click.command()
@click.option("--peers", type=click.Path(path_type=Path), default=CACHE / "environment", show_default=True)
@click.option(
    "--checkpoint", type=click.Path(path_type=Path), help="Default: a random one of base size, made here."
)
@click.option(
    "--bundle", type=click.Path(path_type=Path), help="The checkpoint's own bundle; default: export one."
)
@click.option("--models", type=click.Path(path_type=Path), default=CACHE / "models", show_default=True)
@click.option("--nano", type=click.Path(path_type=Path), default=ROOT / "bundles" / "nano", show_default=True)
@click.option("--threads", type=click.IntRange(1), default=2, show_default=True, help="Of every engine.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--requests", type=click.IntRange(1), default=1000, show_default=True)
@click.option("--result", type=click.Path(path_type=Path, dir_okay=False), help="Default: by machine.")
def main(
    peers: Path,
    checkpoint: Path | None,
    bundle: Path | None,
    models: Path,
    nano: Path,
    threads: int,
    rounds: int,
    requests: int,
    result: Path | None,
) -> None:
    """Measure every engine in turn, in one run, with the same threads and the same token ids."""
    python = peers.absolute() / "bin" / "python"
    if not python.is_file():
        raise click.UsageError(f"{python}: no such file; `make bench-peers` installs the peers")
    checkpoint = checkpoint or random_checkpoint(CACHE / "base")
    if not (checkpoint / "config.json").is_file():
        raise click.UsageError(f"{checkpoint}: no config.json; a checkpoint has one")
    if bundle and not (bundle / "manifest.json").is_file():
        raise click.UsageError(f"{bundle}: no manifest.json; a bundle has one")
    if threads > len(os.sched_getaffinity(0)):
        raise click.UsageError(f"{threads} threads, but {len(os.sched_getaffinity(0))} CPUs")
    start_s = time.perf_counter()
    load_average = os.getloadavg()[0]
    if load_average > QUIET_LOAD:
        say(f"something else is running here (load {load_average:.1f}): the figures will mean little")
    try:
        found = compare(
            checkpoint.absolute(),
            models.absolute(),
            Environments(peers=python),
            bundle=bundle and bundle.absolute(),
            threads=threads,
            rounds=rounds,
            requests=requests,
            nano=nano,
        )
    except OtherCheckpoint as error:
        raise click.UsageError(str(error)) from error
    except (ConversionFailed, MeasurementFailed) as error:
        raise click.ClickException(str(error)) from error
    found["load_average_before"] = load_average
    found["minutes"] = round((time.perf_counter() - start_s) / 60, 1)
    target = result or RESULTS / f"peers-{slug(describe_device())}.json"
    target.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"wrote {target} after {found['minutes']} minutes")


def compare(
    checkpoint: Path,
    models: Path,
    environments: Environments,
    *,
    bundle: Path | None,
    threads: int,
    rounds: int,
    requests: int,
    nano: Path,
) -> dict[str, Any]:
    made = convert(checkpoint, models, environments, bundle=bundle, say=say)
    vocabulary = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    measured, bandwidths = run_rounds(
        contestants(made, environments, threads),
        vocabulary=vocabulary,
        rounds=rounds,
        threads=threads,
        say=say,
    )
    engines = {name: engine_summary(rows) for name, rows in measured.items()}
    ours = Path(made["mothertongue"]["path"])
    say("judging the tokens")
    task = {"path": str(ours), "threads": threads, "vocabulary": vocabulary}
    written = {name: rows[0]["tokens"] for name, rows in measured.items()}
    for name, verdict in run_child(environments.ours, "agreement", task | {"written": written}).items():
        engines[name]["agreement"] = verdict
    say(f"{requests} requests in a row")
    own = run_child(
        environments.ours, "endurance", {"path": str(ours), "threads": threads, "requests": requests}
    )
    if nano.is_dir():
        say("the cold command")
        own["cold_command_s"] = cold_command_s(nano)
    return report(checkpoint, made, environments, engines, bandwidths, own, nano) | {
        "threads": threads,
        "rounds": rounds,
        "busy_processes": 1,
    }


def contestants(
    made: Mapping[str, Mapping[str, Any]], environments: Environments, threads: int
) -> list[Contestant]:
    """Return the rows of the table whose files are there."""
    rows = [
        (OURS, "mothertongue", "mothertongue", threads),
        (LLAMA, "llamacpp", "llamacpp", threads),
        (GENAI, "genai", "genai", threads),
        ("genai_our_bundle", "genai", "mothertongue", threads),
        ("ctranslate2_int8", "ctranslate2", "ctranslate2", threads),
        ("mothertongue_default", "mothertongue", "mothertongue", None),
    ]
    return [
        Contestant(
            name=name,
            engine=engine,
            path=made[files]["path"],
            python=environments.python(engine),
            threads=count,
        )
        for name, engine, files, count in rows
        if "path" in made[files]
    ]


def report(
    checkpoint: Path,
    made: Mapping[str, Mapping[str, Any]],
    environments: Environments,
    engines: dict[str, Any],
    bandwidths: Sequence[float],
    own: dict[str, Any],
    nano: Path,
) -> dict[str, Any]:
    """Return the result file: the engines, the ratios, and every figure that the project asks for."""
    from mothertongue.bundle import verify
    from mothertongue_export.checkpoint import read_checkpoint

    bundle = Path(made["mothertongue"]["path"])
    manifest = verify(bundle)
    bundle_bytes = manifest.total_bytes + (bundle / "manifest.json").stat().st_size
    weights = sum(file.bytes for name, file in manifest.files.items() if name.startswith("model.onnx"))
    parameters = read_checkpoint(checkpoint).parameters
    bound = max(bandwidths) / weights
    ours = engines[OURS]
    own["bundle_bytes_per_parameter"] = bundle_bytes / parameters
    own["peak_of_bundle_and_cache"] = ours["peak_mb"] / (bundle_bytes / 1e6 + own["cache_mb"])
    if "seconds" in made["mothertongue"]:
        own["export_minutes"] = made["mothertongue"]["seconds"] / 60
        own["export_gb"] = made["mothertongue"]["peak_mb"] / 1e3
    own |= nano_quality(nano)
    compared = ratios(engines, bound_tokens_per_s=bound)
    facts = {name: value for name, value in ours.items() if name in FIGURES}
    return {
        "command": COMMAND,
        "machine": machine(describe_device()),
        "versions": versions(environments),
        "checkpoint": {"parameters": parameters, "bundle_bytes": bundle_bytes, "weight_bytes": weights},
        "bandwidth": {
            "method": "numpy.max over 256 MiB in as many threads, best of 5 in each round",
            "gb_per_s_by_round": [value / 1e9 for value in bandwidths],
            "bound_tokens_per_s": bound,
        },
        "not_converted": {name: entry["error"] for name, entry in made.items() if "error" in entry},
        "engines": engines,
        "ratios": compared,
        "ours": own,
        "figures": [demand.as_dict() for demand in demands(facts | own | compared)],
    }


def nano_quality(nano: Path) -> dict[str, float]:
    """Return the largest increase of bits per byte in the proof of the nano bundle, if there is one."""
    parity = nano / "parity.json"
    if not parity.is_file():
        return {}
    languages = json.loads(parity.read_text(encoding="utf-8"))["languages"]
    return {"bits_per_byte_increase_percent": max(text["increase_percent"] for text in languages.values())}


def machine(device: Device) -> dict[str, Any]:
    return {
        "cpu": device.cpu,
        "cores": len(os.sched_getaffinity(0)),
        "int8_flags": list(device.int8_flags),
        "memory_gb": round((device.memory_bytes or 0) / 1e9, 1),
        "system": device.system,
        "python": device.python,
    }


def versions(environments: Environments) -> dict[str, dict[str, str]]:
    """Return what is installed on both sides."""
    code = "import sys, json, importlib.metadata as m; print(json.dumps([*map(m.version, sys.argv[1:])]))"
    theirs = subprocess.run(
        [environments.peers, "-c", code, *PEER_PACKAGES], check=True, capture_output=True, text=True
    )
    ours = {name: version(name) for name in ("mothertongue", "onnxruntime", "numpy")}
    return {"ours": ours, "peers": dict(zip(PEER_PACKAGES, json.loads(theirs.stdout), strict=True))}


def slug(device: Device) -> str:
    """Return the machine as part of a file name: "AMD EPYC", 2 CPUs -> "amd-epyc-2-cores"."""
    words = re.findall(r"[a-z0-9]+", device.cpu.lower().replace("(r)", "").replace("(tm)", ""))
    return "-".join([*words, str(len(os.sched_getaffinity(0))), "cores"])


def random_checkpoint(run: Path) -> Path:
    """Return the checkpoint of base size with random weights in `run`, made where it is missing."""
    checkpoint = run / "checkpoints" / "step-000001"
    if not (checkpoint / "training_state.json").is_file():  # written last but for the text
        shutil.rmtree(run, ignore_errors=True)  # what an interrupted one left
        say(f"making a random checkpoint of base size in {run}")
        subprocess.run([sys.executable, ROOT / "benchmarks" / "base_checkpoint.py", run], check=True)
    return checkpoint


if __name__ == "__main__":
    main()
