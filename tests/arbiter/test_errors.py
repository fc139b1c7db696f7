from mothertongue_arbiter.errors import ArbiterError


def test_bad_input_has_exit_code_2():
    assert ArbiterError.exit_code == 2
    assert str(ArbiterError("x: 1 found, 2 expected")) == "x: 1 found, 2 expected"
