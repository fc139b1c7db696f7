import re
import zlib
from pathlib import Path

import numpy as np
import pytest

from mothertongue_arbiter.direction import signs

SPECIFICATION = Path(__file__).parents[2] / "docs" / "frame-format.md"
MASK = (1 << 64) - 1


def sign_in_plain_integers(seed, name, index):
    def mix(z):
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    key = mix(seed) ^ zlib.crc32(name.encode())
    return 1 if mix((key + (index + 1) * 0x9E3779B97F4A7C15) & MASK) < 1 << 63 else -1


@pytest.mark.parametrize(("seed", "name"), [(0, "w"), (17, "blocks.3.q.weight"), (MASK, "ওজন")])
def test_signs_are_those_of_plain_integer_arithmetic(seed, name):
    expected = [sign_in_plain_integers(seed, name, index) for index in range(100)]
    assert signs(seed, name, 100).tolist() == expected


def test_the_specification_states_the_signs_that_are_used():
    vectors = re.findall(r"^\| (\d+) \| `(.+?)` \| `([+-]{16})` \|$", SPECIFICATION.read_text("utf-8"), re.M)
    assert len(vectors) == 3
    for seed, name, stated in vectors:
        found = "".join("+" if sign > 0 else "-" for sign in signs(int(seed), name, 16))
        assert found == stated


def test_signs_are_balanced_and_differ_between_names():
    one, other = signs(0, "a", 10_000), signs(0, "b", 10_000)
    assert abs(one.mean()) < 0.05
    assert abs(np.mean(one * other)) < 0.05


def test_a_longer_tensor_continues_the_signs_of_a_shorter_one():
    assert signs(5, "w", 64)[:16].tolist() == signs(5, "w", 16).tolist()


def test_signs_from_an_element_on_are_the_rest_of_all_signs():
    assert signs(5, "w", 10, start=54).tolist() == signs(5, "w", 64)[54:].tolist()
    assert signs(5, "w", 1, start=3 << 32).tolist() == [sign_in_plain_integers(5, "w", 3 << 32)]
