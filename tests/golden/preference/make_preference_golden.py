#!/usr/bin/env python3
"""Writes losses.json: preference losses and their gradients, in fp64, by TRL's own trainers on random log-probabilities.

usage: make_preference_golden.py   (in an environment with trl 1.16.0, torch, transformers)

A case holds the rule, and of each pair (kto: each answer) the number of tokens, the log-probabilities of policy and reference
summed over them, the loss of all, and its gradient by each sum: equal for every token of an answer, which is checked here.
The methods of DPOTrainer, CPOTrainer, ORPOTrainer and KTOTrainer are called on objects that have just what they read.
"""

import contextlib
import json
import pathlib
from collections import defaultdict
from types import SimpleNamespace

import torch
from trl.experimental.cpo.cpo_trainer import CPOTrainer
from trl.experimental.orpo.orpo_trainer import ORPOTrainer
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.kto_trainer import KTOTrainer

torch.manual_seed(20261122)
torch.set_default_dtype(torch.float64)
LONGEST = 12


class Accelerator:
    device = torch.device("cpu")

    @staticmethod
    def gather(x):
        return x

    gather_for_metrics = gather


class Model(torch.nn.Module):
    is_gradient_checkpointing = False


def tokens_of(rows):
    """Lengths, a mask [rows, LONGEST] of each row's answer behind three tokens of a prompt, and log-probabilities there."""
    lengths = torch.randint(1, LONGEST - 3, (rows,))
    places = torch.arange(LONGEST)
    mask = ((places >= 3) & (places < 3 + lengths[:, None])).long()
    return lengths, mask


def outputs_of(per_token, mask):
    zeros = torch.zeros_like(per_token)
    return SimpleNamespace(
        log_probs=per_token * mask[:, 1:], entropy=zeros, mean_logits=zeros, is_top1=zeros.bool(), aux_loss=None
    )


def sums_and_gradients(per_token, mask, loss):
    (gradient,) = torch.autograd.grad(loss, per_token)
    gradient = gradient * mask[:, 1:]
    lengths = mask[:, 1:].sum(1)
    mean = gradient.sum(1) / lengths
    assert torch.allclose(gradient, mean[:, None] * mask[:, 1:], atol=1e-15), "tokens of an answer weigh alike"
    return (per_token.detach() * mask[:, 1:]).sum(1), mean


def dpo_case(loss_types, weights, beta, label_smoothing, scale):
    pairs = 6
    lengths, mask = tokens_of(2 * pairs)
    policy = (-torch.rand(2 * pairs, LONGEST - 1) * scale).requires_grad_()
    reference = -torch.rand(2 * pairs, LONGEST - 1) * scale
    passes = iter([outputs_of(policy, mask), outputs_of(reference, mask)])
    trainer = SimpleNamespace(
        model=Model(),
        accelerator=Accelerator(),
        aux_loss_enabled=False,
        ld_alpha=None,
        precompute_ref_logps=False,
        ref_model=lambda **_: next(passes),
        f_divergence_type="reverse_kl",
        loss_types=loss_types,
        loss_weights=weights,
        beta=beta,
        label_smoothing=label_smoothing,
        use_weighting=False,
        use_liger_kernel=False,
        args=SimpleNamespace(gradient_checkpointing=False, gradient_checkpointing_kwargs=None),
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
    )
    inputs = {
        "input_ids": torch.zeros_like(mask),
        "attention_mask": torch.ones_like(mask),
        "completion_mask": mask,
    }
    loss = DPOTrainer._compute_loss(trainer, lambda **_: next(passes), inputs, return_outputs=False)
    sums, gradients = sums_and_gradients(policy, mask, loss)
    return {
        "tokens": lengths.tolist(),
        "policy": sums.tolist(),
        "reference": (reference * mask[:, 1:]).sum(1).tolist(),
        "loss": loss.item(),
        "gradient": gradients.tolist(),
        "metrics": {k: v[-1] for k, v in trainer._metrics["train"].items() if k.startswith(("rewards/", "logps/"))},
    }


def mean_case(function, trainer):
    """CPO's and ORPO's losses see means over tokens."""
    pairs = 6
    lengths, mask = tokens_of(2 * pairs)
    policy = (-torch.rand(2 * pairs, LONGEST - 1) * 3).requires_grad_()
    means = (policy * mask[:, 1:]).sum(1) / lengths
    losses, chosen, rejected = function(trainer, means[:pairs], means[pairs:])[:3]
    if function is ORPOTrainer.odds_ratio_loss:
        losses = -losses  # what get_batch_loss_metrics subtracts
    loss = losses.mean()
    sums, gradients = sums_and_gradients(policy, mask, loss)
    return {
        "tokens": lengths.tolist(),
        "policy": sums.tolist(),
        "reference": [0.0] * (2 * pairs),
        "loss": loss.item(),
        "gradient": gradients.tolist(),
        "metrics": {"rewards/chosen": chosen.mean().item(), "rewards/rejected": rejected.mean().item()},
    }


def orpo_case(beta):
    """ORPO's whole loss, by the trainer's own passes over logits of two words, of which the first is every token's."""
    pairs, prompt = 5, 3
    lengths, mask = tokens_of(2 * pairs)
    policy = (-torch.rand(2 * pairs, LONGEST - 1) * 3 - 0.01).requires_grad_()
    seen = ((torch.arange(LONGEST) < prompt) | mask.bool()).long()
    ids, labels = torch.zeros_like(mask), torch.where(mask == 1, 0, -100)
    batch = {}
    for name, rows in (("chosen", slice(0, pairs)), ("rejected", slice(pairs, None))):
        batch |= {
            f"{name}_{key}": x[rows] for key, x in (("input_ids", ids), ("labels", labels), ("attention_mask", seen))
        }
    logits = torch.stack([policy, torch.log1p(-policy.exp())], -1)
    logits = torch.cat([logits, torch.zeros(2 * pairs, 1, 2)], 1)  # the last token predicts nothing
    trainer = SimpleNamespace(
        beta=beta, accelerator=Accelerator(), padding_value=0, is_encoder_decoder=False, aux_loss_enabled=False
    )
    for method in ("concatenated_forward", "odds_ratio_loss"):
        setattr(trainer, method, getattr(ORPOTrainer, method).__get__(trainer))
    for method in ("concatenated_inputs", "get_batch_logps"):
        setattr(trainer, method, getattr(ORPOTrainer, method))
    loss, metrics = ORPOTrainer.get_batch_loss_metrics(trainer, lambda *_, **__: SimpleNamespace(logits=logits), batch)
    (gradient,) = torch.autograd.grad(loss, policy)
    before = seen[:, 1:] - mask[:, 1:]
    mean = (gradient * mask[:, 1:]).sum(1) / lengths
    of_prompts = (gradient * before).sum(1) / before.sum(1)
    assert torch.allclose(gradient, mean[:, None] * mask[:, 1:] + of_prompts[:, None] * before, atol=1e-15)
    sums = policy.detach()
    return {
        "tokens": lengths.tolist(),
        "policy": (sums * mask[:, 1:]).sum(1).tolist(),
        "reference": [0.0] * (2 * pairs),
        "prompt_tokens": before.sum(1)[:pairs].tolist(),
        "prompt_policy": (sums * before).sum(1)[:pairs].tolist(),
        "loss": loss.item(),
        "gradient": mean.tolist(),
        "prompt_gradient": of_prompts[:pairs].tolist(),
        "metrics": {"rewards/chosen": float(metrics["rewards/chosen"]), "nll_loss": float(metrics["nll_loss"])},
    }


def kto_case(beta, desirable, undesirable, foreign_shift):
    rows = 8
    lengths, mask = tokens_of(rows)
    policy = (-torch.rand(rows, LONGEST - 1) * 2).requires_grad_()
    reference = -torch.rand(rows, LONGEST - 1) * 2
    foreign_policy = -torch.rand(rows) * 9
    foreign_reference = -torch.rand(rows) * 9 - foreign_shift
    label = torch.tensor([1, 0, 1, 1, 0, 0, 1, 0]).bool()
    passes = iter([outputs_of(policy, mask), outputs_of(reference, mask)])
    foreign = iter([foreign_policy, foreign_reference])
    trainer = SimpleNamespace(
        model=Model(),
        accelerator=Accelerator(),
        aux_loss_enabled=False,
        calculate_KL=True,
        precompute_ref_logps=False,
        ref_model=lambda **_: next(passes),
        loss_type="kto",
        beta=beta,
        desirable_weight=desirable,
        undesirable_weight=undesirable,
        use_liger_kernel=False,
        args=SimpleNamespace(gradient_checkpointing=False, gradient_checkpointing_kwargs=None),
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
        _compute_kl_logps=lambda *_: next(foreign),
    )
    inputs = {
        "input_ids": torch.zeros_like(mask),
        "attention_mask": torch.ones_like(mask),
        "completion_mask": mask,
        "label": label,
    }
    loss = KTOTrainer._compute_loss(trainer, lambda **_: next(passes), inputs, return_outputs=False)
    sums, gradients = sums_and_gradients(policy, mask, loss)
    return {
        "tokens": lengths.tolist(),
        "policy": sums.tolist(),
        "reference": (reference * mask[:, 1:]).sum(1).tolist(),
        "foreign_policy": foreign_policy.tolist(),
        "foreign_reference": foreign_reference.tolist(),
        "label": label.tolist(),
        "loss": loss.item(),
        "gradient": gradients.tolist(),
        "metrics": {"kl": trainer._metrics["train"]["kl"][-1]},
    }


def cases():
    for beta, scale in ((0.1, 2.0), (0.5, 6.0)):
        for loss_type in ("sigmoid", "hinge", "ipo"):
            rule = {"type": loss_type, "beta": beta}
            yield rule, dpo_case([loss_type], [1.0], beta, 0.0, scale)
        for smoothing in (0.1, 0.3):
            rule = {"type": "robust", "beta": beta, "label_smoothing": smoothing}
            yield rule, dpo_case(["robust"], [1.0], beta, smoothing, scale)
        yield (
            {"type": "sigmoid", "beta": beta, "rpo_alpha": 0.7},
            dpo_case(["sigmoid", "sft"], [1.0, 0.7], beta, 0.0, scale),
        )
    for beta, gamma, smoothing in ((2.0, 0.5, 0.0), (2.5, 1.4, 0.2)):
        trainer = SimpleNamespace(
            alpha=0.0,
            accelerator=Accelerator(),
            loss_type="simpo",
            beta=beta,
            simpo_gamma=gamma,
            label_smoothing=smoothing,
        )
        rule = {"type": "simpo", "beta": beta, "gamma": gamma, "label_smoothing": smoothing}
        yield rule, mean_case(CPOTrainer.cpo_loss, trainer)
    for beta in (0.1, 1.0):
        # .float() in it would round: the trainer's precision is not the formula's
        trainer = SimpleNamespace(beta=beta, accelerator=Accelerator())
        with double_is_kept():
            yield {"type": "orpo", "beta": beta}, mean_case(ORPOTrainer.odds_ratio_loss, trainer)
    for beta, desirable, undesirable, shift in ((0.1, 1.0, 1.0, 4.0), (0.4, 1.3, 0.6, 4.0), (0.2, 1.0, 1.0, -9.0)):
        rule = {"type": "kto", "beta": beta, "desirable": desirable, "undesirable": undesirable}
        yield rule, kto_case(beta, desirable, undesirable, shift)
    for beta in (0.1, 0.8):
        with double_is_kept():
            yield {"type": "orpo", "beta": beta}, orpo_case(beta)


@contextlib.contextmanager
def double_is_kept():
    to_float = torch.Tensor.float
    torch.Tensor.float = lambda self: self if self.is_floating_point() else to_float(self)
    try:
        yield
    finally:
        torch.Tensor.float = to_float


if __name__ == "__main__":
    written = [{"rule": rule} | case for rule, case in cases()]
    target = pathlib.Path(__file__).parent / "losses.json"
    target.write_text(json.dumps(written, indent=0) + "\n")
    print(len(written), "cases")
