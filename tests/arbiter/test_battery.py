import time

from zoo import ZooRun

from mothertongue_arbiter.audit import Options
from mothertongue_arbiter.torch.battery import certify


def test_every_check_is_run_or_listed_as_not_run():
    certificate = certify(ZooRun(), step=0, options=Options())
    names = [check.name for check in certificate.checks] + [absent.name for absent in certificate.not_run]
    assert len(names) == len(set(names)) >= 28
    assert certificate.shapes["blocks.0.k.weight"] == (16, 32)
    assert certificate.dtypes["norm"] == "float32"
    assert certificate.versions["torch"]


def test_the_cost_is_counted_in_steps_that_were_timed_and_apart_from_float64():
    run, slow = ZooRun(), 0.05
    believed = run.train_step
    run.train_step = lambda step: (time.sleep(slow), believed(step))
    certificate = certify(run, step=0, options=Options())
    wide = sum(one.seconds for one in certificate.checks if one.name in ("gradient values", "causality"))
    assert slow < certificate.step_seconds < 2 * slow
    assert wide < certificate.float64_seconds < certificate.seconds
    assert certificate.training_steps * certificate.step_seconds < certificate.seconds
    run.train_step = None
    assert certify(run, step=0, options=Options()).step_seconds is None


def test_a_check_that_raises_is_inconclusive_and_the_others_go_on():
    run = ZooRun()
    run.documents = lambda step, rank: 1 / 0
    answers = {check.name: check for check in certify(run, step=0, options=Options()).checks}
    assert answers["isolated documents"].verdict == "INCONCLUSIVE"
    assert "ZeroDivisionError" in answers["isolated documents"].evidence
    assert answers["gradient values"].verdict == "PASS"
