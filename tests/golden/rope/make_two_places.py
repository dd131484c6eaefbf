#!/usr/bin/env python3
"""Makes two_places.json with transformers 5.23.0: python3 make_two_places.py

Configurations that state a rope's facts in two places, or in an unusual one, and what transformers makes of them for a
sequence of 200 tokens.
"""

import json
import tempfile
from pathlib import Path

import torch
from transformers import AutoConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

BASE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 96,
    "max_position_embeddings": 256,
}
LENGTH = "original_max_position_embeddings"
LINEAR = {"rope_type": "linear", "factor": 2.0}
YARN = {"rope_type": "yarn", "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}

CASES = {
    "yarn, length beside": {"rope_scaling": YARN, LENGTH: 64},
    "yarn, length in both": {"rope_scaling": {**YARN, LENGTH: 128}, LENGTH: 64},
    "yarn, length in neither": {"rope_scaling": YARN},
    "yarn in parameters, length beside": {"rope_parameters": {**YARN, "rope_theta": 5000.0}, LENGTH: 64},
    "yarn without factor, length beside": {"rope_scaling": {**YARN, "factor": None}, LENGTH: 64},
    "llama3, length in both": {"rope_scaling": {**LLAMA3, LENGTH: 32}, LENGTH: 64},
    "llama3, length in neither": {"rope_scaling": LLAMA3},
    "longrope without factor, length beside": {"rope_scaling": LONGROPE, LENGTH: 64},
    "longrope with factor, length beside": {"rope_scaling": {**LONGROPE, "factor": 2.0}, LENGTH: 64},
    "linear, length beside": {"rope_scaling": LINEAR, LENGTH: 64},
    "dynamic, length beside": {"rope_scaling": DYNAMIC, LENGTH: 64},
    "default, length beside": {LENGTH: 64},
    "empty scaling, linear parameters": {"rope_scaling": {}, "rope_parameters": {**LINEAR, "rope_theta": 5000.0}},
    "empty scaling, default parameters": {
        "rope_scaling": {},
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
    },
    "both empty": {"rope_scaling": {}, "rope_parameters": {}, "rope_theta": 7000.0},
    "both null": {"rope_scaling": None, "rope_parameters": None, "rope_theta": 7000.0},
    "scaling, theta in parameters": {
        "rope_scaling": LINEAR,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
    },
    "scaling, theta in parameters and beside": {
        "rope_scaling": LINEAR,
        "rope_theta": 7000.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
    },
    "scaling with theta, theta beside": {"rope_scaling": {**LINEAR, "rope_theta": 9000.0}, "rope_theta": 7000.0},
    "parameters with theta, theta beside": {"rope_parameters": {**LINEAR, "rope_theta": 9000.0}, "rope_theta": 7000.0},
    "parameters without theta, theta beside": {"rope_parameters": LINEAR, "rope_theta": 7000.0},
    "type and rope_type": {"rope_scaling": {"type": "dynamic", "rope_type": "linear", "factor": 2.0}},
    "type in parameters": {"rope_parameters": {"type": "linear", "factor": 2.0}},
    "default scaling, linear parameters": {"rope_scaling": {"rope_type": "default"}, "rope_parameters": LINEAR},
    "scaling of theta alone, linear parameters": {
        "rope_scaling": {"rope_theta": 9000.0},
        "rope_parameters": {**LINEAR, "rope_theta": 5000.0},
    },
}

found = {}
for name, config in CASES.items():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps({**BASE, **config}))
        rope = LlamaRotaryEmbedding(AutoConfig.from_pretrained(folder))
    rope(torch.zeros(1, 1, 1), torch.arange(200)[None])
    found[name] = {
        "config": config,
        "inv_freq": rope.inv_freq.tolist(),
        "attention_scaling": rope.attention_scaling,
    }
(Path(__file__).parent / "two_places.json").write_text(json.dumps({"base": BASE, "cases": found}, indent=1) + "\n")
