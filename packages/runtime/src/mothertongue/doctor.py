"""Whether this machine, and a bundle on it, are ready: each finding with what to do if it is bad."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mothertongue.bundle import onnxruntime_version, require_onnxruntime, verify
from mothertongue.busyness import Watch
from mothertongue.chat import Message
from mothertongue.device import describe_device
from mothertongue.errors import BundleError, MothertongueError
from mothertongue.golden import GOLDEN_FILE, golden_findings, read_golden
from mothertongue.model import load
from mothertongue.sampling import Sampling
from mothertongue.threads import allowed_cpus, choose_threads

MINIMUM_PYTHON = (3, 11)
MINIMUM_ONNXRUNTIME = "1.23"  # the first with 8-bit kernels for x86-64 and ARM64
MINIMUM_FREE_BYTES = 1 << 30
TRIAL_TOKENS = 32
PACKAGES = ("mothertongue", "numpy", "tokenizers", "jinja2")
LOOK_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing looked at."""

    name: str
    good: bool
    found: str
    remedy: str = ""  # what to do, if it is not good


def examine(folder: Path | None = None) -> Iterator[Finding]:
    """Yield the findings about this machine and, if `folder` is given, about the bundle in it."""
    yield examine_python()
    yield examine_onnxruntime()
    yield examine_packages()
    yield examine_cpu()
    threads = choose_threads()
    yield Finding(name="threads", good=True, found=f"{threads.count} ({threads.reason})")
    yield examine_spinning()
    yield examine_disk(folder or Path())
    if folder is not None:
        yield examine_files(folder)
        if (folder / GOLDEN_FILE).exists():
            yield examine_golden(folder)
        yield examine_answer(folder)


def examine_python() -> Finding:
    """Return whether this Python is new enough."""
    wanted = ".".join(map(str, MINIMUM_PYTHON))
    return Finding(
        name="python",
        good=sys.version_info >= MINIMUM_PYTHON,
        found=sys.version.split()[0],
        remedy=f"install Python {wanted} or newer",
    )


def examine_onnxruntime() -> Finding:
    """Return whether an onnxruntime is installed that has the 8-bit kernels."""
    try:
        require_onnxruntime(MINIMUM_ONNXRUNTIME)
    except BundleError as error:
        return Finding(name="onnxruntime", good=False, found="not usable", remedy=str(error))
    return Finding(name="onnxruntime", good=True, found=onnxruntime_version())


def examine_packages() -> Finding:
    """Return the versions of what else a bundle is run with."""
    missing = []
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    return Finding(
        name="packages",
        good=not missing,
        found=", ".join(found) or "none",
        remedy=f"install with: pip install {' '.join(missing)}",
    )


def examine_cpu() -> Finding:
    """Return which processor this is, and what it has for 8-bit arithmetic."""
    device = describe_device()
    known = device.int8_flags or platform.system() != "Linux"  # elsewhere the system does not say
    flags = ", ".join(device.int8_flags) or ("not known here" if known else "no 8-bit instructions")
    return Finding(
        name="cpu",
        good=bool(known),
        found=f"{device.cpu} ({flags})",
        remedy="answers will be slow; use a processor with AVX2 or the Arm dot product",
    )


def examine_spinning() -> Finding:
    """Return what else runs, on which depends whether threads spin between two operators."""
    watch = Watch()
    time.sleep(LOOK_S)
    others = watch.others()
    found = "not known here" if others is None else f"others take {others:.1f} of {len(allowed_cpus())} CPUs"
    return Finding(name="load", good=True, found=found)


def examine_disk(folder: Path) -> Finding:
    """Return whether the disk of `folder`, which need not exist, has room."""
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free_bytes = shutil.disk_usage(place).free
    return Finding(
        name="disk",
        good=free_bytes >= MINIMUM_FREE_BYTES,
        found=f"{free_bytes / 1e9:.1f} GB free",
        remedy=f"free {MINIMUM_FREE_BYTES / 1e9:.0f} GB or more",
    )


def examine_files(folder: Path) -> Finding:
    """Return whether every file of the bundle is the one that was proved."""
    try:
        manifest = verify(folder)
    except MothertongueError as error:
        return Finding(name="bundle", good=False, found="not sound", remedy=str(error))
    found = (
        f"{len(manifest.files)} files, {manifest.total_bytes / 1e6:.1f} MB, every byte verified, "
        f"model {manifest.model_sha256[:12]}"
    )
    return Finding(name="bundle", good=True, found=found)


def examine_golden(folder: Path) -> Finding:
    """Return whether this processor computes what was proved on another."""
    try:
        golden = read_golden(folder)
        findings = golden_findings(golden, load(folder).engine.session())
    except (MothertongueError, ValueError) as error:
        return Finding(name="golden", good=False, found="not run", remedy=str(error))
    tokens = sum(len(text.greedy_ids) for text in golden)
    return Finding(
        name="golden",
        good=not findings,
        found=f"{tokens} proved tokens, {len(findings) or 'none'} of {len(golden)} texts differ",
        remedy=f"{findings[0]}; update with: pip install -U onnxruntime" if findings else "",
    )


def examine_answer(folder: Path) -> Finding:
    """Return whether the bundle answers, and how fast."""
    try:
        answer = load(folder).reply([Message("user", "?")], Sampling(max_tokens=TRIAL_TOKENS))
    except (MothertongueError, ValueError) as error:
        return Finding(name="answer", good=False, found="none", remedy=str(error))
    return Finding(
        name="answer",
        good=True,
        found=f"{answer.tokens} tokens, {answer.tokens_per_second:.0f} tokens/s, "
        f"first after {1e3 * answer.seconds_to_first_token:.0f} ms",
    )
