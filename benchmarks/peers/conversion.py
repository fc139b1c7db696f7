"""The checkpoint in the format of each engine, converted once and kept, with the seconds and the memory."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parents[1]
TARGETS = {
    "mothertongue": "bundle",
    "llamacpp": "model-q8_0.gguf",
    "genai": "genai-int8",
    "ctranslate2": "ctranslate2-int8",
}
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
STAGED = "checkpoint"  # what the converters of the peers read


@dataclass(frozen=True, kw_only=True)
class Environments:
    """The two interpreters, and where their packages are."""

    peers: Path  # python of the environment with the peers

    @property
    def ours(self) -> Path:
        return Path(sys.executable)

    def python(self, engine: str) -> Path:
        return self.ours if engine == "mothertongue" else self.peers

    def site(self, python: Path) -> str:
        """Return the folder with the packages of `python`."""
        code = "import sysconfig; print(sysconfig.get_path('purelib'))"
        return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


class ConversionFailed(Exception):
    """A converter ended with an error; the message has the last lines it printed."""


class OtherCheckpoint(Exception):
    """The folder for converted files holds those of another checkpoint."""


def convert(
    checkpoint: Path,
    folder: Path,
    environments: Environments,
    *,
    bundle: Path | None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Return {engine: {"path", "seconds", "peak_mb"}} or {engine: {"error"}}, converting what is missing.

    `bundle` is the checkpoint's own, where it has been exported already. Raises ConversionFailed if ours or
    llama.cpp's is not to be had, as there would be nothing to compare, and OtherCheckpoint.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "source.json"
    fingerprint = identity(checkpoint)
    if source.is_file() and json.loads(source.read_text(encoding="utf-8")) != fingerprint:
        raise OtherCheckpoint(f"{folder}: holds another checkpoint; name another folder or remove it")
    source.write_text(json.dumps(fingerprint), encoding="utf-8")
    stage(checkpoint, folder / STAGED)
    made = {}
    for engine, name in TARGETS.items():
        if engine == "mothertongue" and bundle:
            made[engine] = {"path": str(bundle.resolve())}
            continue
        record = folder / f"{engine}.json"
        if not record.is_file():
            say(f"converting for {engine} ...")
            try:
                cost = run_converter(engine, checkpoint, folder / name, environments)
            except ConversionFailed as error:
                if engine in ("mothertongue", "llamacpp"):
                    raise
                say(f"{engine} is left out: {error}")
                made[engine] = {"error": str(error)}
                continue
            record.write_text(json.dumps({"path": str(folder / name)} | cost), encoding="utf-8")
        made[engine] = json.loads(record.read_text(encoding="utf-8"))
    return made


def identity(checkpoint: Path) -> dict[str, Any]:
    """Return what tells one checkpoint from another without reading gigabytes."""
    weights = (checkpoint / "model.safetensors").stat()
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    return {"config": config, "bytes": weights.st_size, "modified_ns": weights.st_mtime_ns}


def stage(checkpoint: Path, folder: Path) -> None:
    """Write a Hugging Face folder that the peers' converters can read, with the same weights.

    The class of the tokenizer is named, because transformers adds entries of its own to Qwen's.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for path in checkpoint.iterdir():
        if path.name != TOKENIZER_CONFIG_FILE:
            (folder / path.name).symlink_to(path.resolve())
    settings = json.loads((checkpoint / TOKENIZER_CONFIG_FILE).read_text(encoding="utf-8"))
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / TOKENIZER_CONFIG_FILE).write_text(json.dumps(settings, ensure_ascii=False), encoding="utf-8")


def run_converter(
    engine: str, checkpoint: Path, target: Path, environments: Environments
) -> dict[str, float]:
    """Convert in a process of its own; return what it cost. A failed one leaves nothing."""
    ours = engine in ("mothertongue", "llamacpp")  # both are written by our export
    python, other = (
        (environments.ours, environments.peers) if ours else (environments.peers, environments.ours)
    )
    source = checkpoint if engine == "mothertongue" else target.parent / STAGED
    remove(target)
    command = [python, "-m", "peers.converters", engine, source, target, environments.site(other)]
    log = target.parent / f"{engine}.log"
    start_s = time.perf_counter()
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=child_environment())
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        remove(target)
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise ConversionFailed(f"{engine}: {lines[-1] if lines else 'no message'} (see {log.name} there)")
    return {"seconds": time.perf_counter() - start_s, "peak_mb": usage.ru_maxrss * 1024 / 1e6}


def remove(target: Path) -> None:
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)


def child_environment() -> dict[str, str]:
    """Return this process's environment without settings of threads, and with this package on the path.

    Bytecode is kept for us too: the peers got theirs when they were installed.
    """
    left_out = ("OMP_", "GOMP_", "MKL_", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return kept | {"PYTHONPATH": str(BENCHMARKS)}
