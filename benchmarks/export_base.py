"""Export a base-size checkpoint with its whole proof -> benchmarks/results/export-base.json.

    python benchmarks/base_checkpoint.py runs/base-random
    python benchmarks/export_base.py runs/base-random

The gates are those of a real export. There are no conversations to ask, so held-out texts are continued.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from record import machine

from mothertongue.bundle import verify
from mothertongue_export.checkpoint import read_checkpoint
from mothertongue_export.exporter import export
from mothertongue_trainer.document import read_documents
from mothertongue_trainer.recipe import ExportConfig

RESULT = Path(__file__).parent / "results" / "export-base.json"


def main() -> None:
    """Export the run folder that the command line names, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path)
    run = parser.parse_args().run
    checkpoint = run / "checkpoints" / "step-000001"
    heldout = list(read_documents(run / "corpus" / "heldout.jsonl"))
    stages: dict[str, float] = {}
    latest, start_s = "", time.perf_counter()

    def progress(what: str, done: int, total: int | None) -> None:
        nonlocal latest
        if what != latest:
            stages[what] = round(time.perf_counter() - start_s, 1)
            latest = what

    processor_s = time.process_time()
    config = ExportConfig()
    with tempfile.TemporaryDirectory(dir=run) as folder:
        bundle = Path(folder) / "bundle"
        report = export(checkpoint, bundle, config=config, heldout=heldout, progress=progress)
        seconds = time.perf_counter() - start_s
        total_bytes = verify(bundle).total_bytes + (bundle / "manifest.json").stat().st_size
    parameters = read_checkpoint(checkpoint).parameters
    found = {
        "command": "python benchmarks/export_base.py FOLDER",
        "machine": machine(),
        "load_average": os.getloadavg()[0],
        "parameters": parameters,
        "seconds": round(seconds, 1),
        "processor_seconds": round(time.process_time() - processor_s, 1),
        "stage_begins_s": stages,
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 2),
        "bundle_bytes": total_bytes,
        "bytes_per_parameter": round(total_bytes / parameters, 4),
        "config": asdict(config),
        "parity": {key: value for key, value in report.as_dict().items() if key not in ("greedy", "storage")},
        "storage": sorted({(row["bits"], row["block_size"]) for row in report.as_dict()["storage"]}),
    }
    RESULT.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    shown = {key: found[key] for key in ("seconds", "processor_seconds", "peak_gb", "bytes_per_parameter")}
    print(json.dumps(shown))


if __name__ == "__main__":
    main()
