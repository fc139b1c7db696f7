from pathlib import Path


def test_the_card_shows_the_proof_the_limits_and_the_source_of_the_text(bundle: Path) -> None:
    card = (bundle / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\n")
    assert "# tiny" in card
    assert "| KL divergence, mean (nats) |" in card
    assert "**PASS**" in card
    assert "- own words: CC0" in card
    assert "It can be wrong" in card
    assert "language: [bn, en]" in card
