"""Family h: what happens around the steps: checkpoint, resume, training mode, speed, rare events."""

import time
from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional as F

from faults.fault import fault, sound
from faults.subject import ZooRun, warmed_up

RESUME = "resume"


def after_resume(run, change):
    """Let `change(state)` happen at the end of each resume."""
    resume = run.resume

    def resumed(state):
        resume(state)
        change(state)

    run.resume = resumed


@fault("pytorch#192307", RESUME)
def h1_moments_lost(run):
    after_resume(run, lambda state: run.optimizer.state.clear())


@fault("entrenar#257", RESUME)
def h2_step_counter_of_adam_starts_again(run):
    def restart(state):
        for kept in run.optimizer.state.values():
            kept["step"].zero_()

    after_resume(run, restart)


@fault("entrenar#294", RESUME)
def h3_data_starts_again(run):
    def again(state):
        start = state["steps_taken"]
        run.data_step = lambda step: step - start if step >= start else step

    after_resume(run, again)


@fault("accelerate#4165", RESUME)
def h4_every_epoch_has_the_order_of_the_first(run):
    """The sampler forgets which epoch it is in."""

    def forget(state):
        order = type(run).order
        run.order = lambda epoch: order(run, 0)

    after_resume(run, forget)


@fault("kempnerforge#51", RESUME, sound=sound(dropout=0.2))
def h5_random_numbers_not_restored(run):
    def other(state):
        torch.manual_seed(state["steps_taken"] + 17)

    after_resume(run, other)


@fault("average not in the checkpoint", RESUME)
def h6_average_starts_again(run):
    def restart(state):
        for name, parameter in run.model.named_parameters():
            run.ema[name].copy_(parameter.detach())

    after_resume(run, restart)


@fault("entrenar#257: schedule", RESUME)
def h7_warm_up_after_each_resume(run):
    def again(state):
        start = state["steps_taken"]
        run.learning_rate = lambda step: warmed_up(step - start if step >= start else step)

    after_resume(run, again)


@fault("lerobot#2151", RESUME)
def h8_a_key_is_renamed_and_strict_is_off(run):
    resume = run.resume

    def lenient(state):
        models = [
            {name.replace("blocks.1.", "layers.1."): v for name, v in one.items()} for one in state["models"]
        ]
        plain = [one.state_dict() for one in run.replicas]
        resume(state | {"models": plain})
        for model, saved in zip(run.replicas, models, strict=True):
            model.load_state_dict(saved, strict=False)

    run.resume = lenient


@fault("pytorch#188166", RESUME)
def h9_load_with_assign_leaves_the_optimizer_behind(run):
    def assign(state):
        run.model.load_state_dict(
            {name: v.clone() for name, v in run.model.state_dict().items()}, assign=True
        )
        run.model.head.weight = run.model.embedding.weight
        for parameter in run.model.parameters():
            parameter.requires_grad_(True)

    after_resume(run, assign)


@fault("pytorch#121157", "optimizer coverage")
def h10_loaded_weights_do_not_want_gradients(run):
    run.model.load_state_dict(
        {name: value.clone() for name, value in run.model.state_dict().items()}, assign=True
    )
    run.model.head.weight = run.model.embedding.weight
    run.model.blocks[0].requires_grad_(False)
    run.prepare()


@fault("eval_mode_in_train", "training mode", sound=sound(dropout=0.2))
def h11_training_in_evaluation_mode(run):
    loss = run.loss
    run.loss = lambda model, batch: loss(model.eval(), batch)


@fault("dropout_in_eval", "dropout", sound=sound(dropout=0.2))
def h12_dropout_in_evaluation(run):
    run.model.operations.drop = lambda x, probability, training: F.dropout(x, probability, True)


def declared_fast():
    run = ZooRun()
    run.declared = replace(run.declared, least_utilisation=1e-3)
    return run


@fault("low_mfu: burn#4598", "throughput", sound=declared_fast)
def h13_the_step_waits_for_its_data(run):
    train_step = run.train_step

    def waiting(step):
        time.sleep(0.1)
        train_step(step)

    run.train_step = waiting


@fault("checkpoint in bfloat16", RESUME)
def h14_weights_saved_in_bfloat16(run):
    checkpoint = run.checkpoint

    def lossy():
        state = checkpoint()
        state["models"] = [{name: v.bfloat16().float() for name, v in one.items()} for one in state["models"]]
        return state

    run.checkpoint = lossy


@fault("transformers#48154", RESUME)
def h15_tie_lost_in_resume(run):
    def untie(state):
        run.model.head.weight = nn.Parameter(run.model.embedding.weight.detach().clone())

    after_resume(run, untie)


@fault("sdc_flip")
def h17_an_activation_flips_every_hundredth_call(run):
    """Rare by design: an audit of one step sees it only by luck, and the zoo counts it as it is."""
    calls = []

    def flipped(x):
        calls.append(1)
        return x * 2**20 if len(calls) % 400 == 399 else x

    run.model.operations.between_layers = flipped


@fault("late_crash: brush#420")
def h18_crash_after_thousands_of_steps(run):
    train_step = run.train_step

    def crashing(step):
        if step >= 4000:
            raise RuntimeError("Should have handle for tensor")
        train_step(step)

    run.train_step = crashing


@fault("compiled differently: pytorch#185509", "gradient values")
def h19_another_kernel_where_gradients_are_kept(run):
    """With gradients enabled another kernel runs than without: what is trained is not what is used."""
    gate = run.model.operations.gate

    def fused(x):
        return gate(x) * 1.01 if torch.is_grad_enabled() else gate(x)

    run.model.operations.gate = fused


@fault("torchtitan#1759", "evaluation", sound=sound(accumulation=4))
def h20_held_out_loss_divided_by_the_micro_batches(run):
    evaluate = run.evaluate
    run.evaluate = lambda: evaluate() / run.accumulation


@fault("evaluation leaves its mode behind", "evaluation mode", sound=sound(dropout=0.2))
def h21_training_goes_on_without_dropout_after_evaluation(run):
    def evaluate():
        run.model.eval()
        with torch.no_grad():
            return sum(float(run.loss(run.model, run.eval_batches(i))) for i in range(2)) / 2

    run.evaluate = evaluate


@fault("evaluation with dropout", "evaluation", sound=sound(dropout=0.5))
def h22_held_out_loss_with_dropout_on(run):
    def evaluate():
        with torch.no_grad():
            return sum(float(run.loss(run.model, run.eval_batches(i))) for i in range(2)) / 2

    run.evaluate = evaluate
