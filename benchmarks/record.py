"""Keep what a run measured: runs/NAME and bundles/NAME -> benchmarks/results/NAME.json.

    python benchmarks/record.py nano

The result is small and committed; README and docs are made from it by `make docs`.
"""

import json
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mothertongue.device import describe_device

LIBRARIES = ("torch", "tokenizers", "onnxruntime", "numpy")


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def machine() -> dict[str, Any]:
    """Describe this machine without naming it."""
    device = describe_device()
    return {
        "cpu": device.cpu,
        "cores": len(os.sched_getaffinity(0)),
        "python": device.python,
        **{library: version(library) for library in LIBRARIES},
    }


def record(name: str) -> dict[str, Any]:
    run, bundle = Path("runs") / name, Path("bundles") / name
    certificate = read(run / "audit" / "certificate.json")
    return {
        "name": name,
        "command": f"mothertongue build recipes/{name}.toml",
        "commit": read(bundle / "manifest.json")["training_commit"],
        "machine": machine(),
        "stages_s": {stage: entry["seconds"] for stage, entry in read(run / "stages.json").items()},
        "tokenizer": read(run / "tokenizer" / "report.json"),
        "evaluation": read(run / "evaluation.json"),
        "certificate": {
            "verdict": certificate["verdict"],
            "checks": [
                {key: check[key] for key in ("name", "verdict", "seconds")} for check in certificate["checks"]
            ],
            "not_run": certificate["not_run"],
        },
        "parity": read(bundle / "parity.json"),
        "bundle_bytes": sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file()),
    }


if __name__ == "__main__":
    name = sys.argv[1] if len(sys.argv) == 2 else sys.exit(__doc__)
    target = Path("benchmarks/results") / f"{name}.json"
    target.write_text(json.dumps(record(name), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {target}")
