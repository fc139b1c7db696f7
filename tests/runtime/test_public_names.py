import re
import subprocess
import sys

import pytest

import mothertongue

ERRORS = {"MothertongueError", "RecipeError", "DataError", "CheckpointError", "BundleError", "CheckFailed"}
PUBLIC = ERRORS | {
    "load", "Model", "Chat", "Answer", "Token", "Message", "Sampling", "Completion", "Manifest",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_public_name_can_be_imported(name: str) -> None:
    assert getattr(mothertongue, name).__name__ == name


def test_the_public_names_are_these_and_at_most_fifteen() -> None:
    with open(mothertongue.__file__, encoding="utf-8") as file:
        declared = set(re.findall(r"import \w+ as (\w+)", file.read()))
    assert declared == PUBLIC
    assert set(mothertongue.HOMES) == PUBLIC - ERRORS
    assert set(mothertongue.__all__) == PUBLIC
    assert len(PUBLIC) <= 15


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        _ = mothertongue.lod


def test_importing_the_package_loads_no_onnxruntime_and_no_tokenizers() -> None:
    code = (
        "import sys, mothertongue, mothertongue.cli, mothertongue.chat, mothertongue.tokenizer;"
        "print([n for n in ('onnxruntime', 'tokenizers', 'jinja2', 'numpy', 'torch') if n in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"
