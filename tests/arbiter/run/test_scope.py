import torch
from zoo import ZooRun

from mothertongue_arbiter import audit
from mothertongue_arbiter.torch.run.scope import scope_of


def changed(before, now):
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


def test_a_run_names_its_code_its_weights_and_the_battery():
    scope = scope_of(ZooRun())
    assert {"code of zoo", "the arbiter", "the version of torch"} <= scope.keys()
    assert not any("torch.nn" in name for name in scope)
    assert scope == scope_of(ZooRun())


def test_other_values_of_the_weights_change_nothing_other_shapes_do():
    before, run = scope_of(ZooRun()), ZooRun()
    with torch.no_grad():
        run.model.norm.mul_(2)
    assert changed(before, scope_of(run)) == []
    run.model.norm = torch.nn.Parameter(run.model.norm.data.double())
    assert changed(before, scope_of(run)) == ["names, shapes or dtypes of weights"]


def test_what_the_run_says_of_itself_is_part_of_it():
    run = ZooRun()
    before = scope_of(run)
    run.scope = {"recipe": "a"}
    assert changed(before, scope_of(run)) == ["recipe"]


def test_a_certificate_is_valid_for_the_run_that_was_audited():
    run = ZooRun()
    certificate = audit(run)
    assert certificate.staleness(scope_of(run)) == ()
