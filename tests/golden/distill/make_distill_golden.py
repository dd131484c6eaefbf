#!/usr/bin/env python3
"""Writes divergences.json: the generalised Jensen-Shannon divergence of TRL's GKD trainer and its gradient by the student's
logits, in fp64, at one position with random logits.

usage: make_distill_golden.py   (in an environment with trl 1.16.0, torch, transformers)

TRL takes beta 0 for KL(teacher || student) and beta 1 for KL(student || teacher).
"""

import json
import pathlib

import torch
from trl.experimental.gkd.gkd_trainer import GKDTrainer

torch.manual_seed(20261122)
torch.set_default_dtype(torch.float64)

cases = []
for beta in (0.0, 0.1, 0.5, 0.9, 1.0):
    for temperature in (1.0, 0.7, 2.5):
        student = (torch.randn(1, 1, 17) * 3).requires_grad_()
        teacher = torch.randn(1, 1, 17) * 3
        loss = GKDTrainer.generalized_jsd_loss(student, teacher, beta=beta, temperature=temperature, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, student)
        cases.append(
            {
                "beta": beta,
                "temperature": temperature,
                "student": student.flatten().tolist(),
                "teacher": teacher.flatten().tolist(),
                "loss": loss.item(),
                "gradient": gradient.flatten().tolist(),
            }
        )
pathlib.Path(__file__).with_name("divergences.json").write_text(
    "[" + ",\n".join(json.dumps(case) for case in cases) + "]\n"
)
