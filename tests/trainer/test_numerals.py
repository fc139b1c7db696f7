from mothertongue_trainer.numerals import addends, bangla_digits, read_numerals


def test_numbers_are_named_as_bangla_speakers_do() -> None:
    numerals = read_numerals()
    assert [number.digits for number in numerals[:12]] == [*"০১২৩৪৫৬৭৮৯", "১০", "১১"]
    by_digits = {number.digits: (number.bangla, number.english) for number in numerals}
    assert by_digits["০"] == ("শূন্য", "zero")
    assert by_digits["৯"] == ("নয়", "nine")
    assert by_digits["১৯"] == ("উনিশ", "nineteen")
    assert by_digits["২৯"] == ("ঊনত্রিশ", "twenty-nine")
    assert by_digits["৩৫"] == ("পঁয়ত্রিশ", "thirty-five")
    assert by_digits["৫৪"] == ("চুয়ান্ন", "fifty-four")
    assert by_digits["৬৬"] == ("ছেষট্টি", "sixty-six")
    assert by_digits["৭৯"] == ("ঊনআশি", "seventy-nine")
    assert by_digits["৯৯"] == ("নিরানব্বই", "ninety-nine")
    assert by_digits["১০০"] == ("একশো", "one hundred")


def test_every_number_has_its_own_names() -> None:
    numerals = read_numerals()
    assert len(numerals) == 101
    assert len({number.bangla for number in numerals}) == 101
    assert len({number.english for number in numerals}) == 101


def test_digits_are_bangla() -> None:
    assert bangla_digits(4096) == "৪০৯৬"


def test_sums_are_asked_in_both_orders() -> None:
    pairs = addends()
    assert len(pairs) == 441
    assert {(0, 20), (20, 0), (7, 5), (5, 7)} <= set(pairs)
