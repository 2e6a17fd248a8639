#!/usr/bin/env python3
"""Trains a small GPT-2 for real with the algorithm of one system: small_gpt2.py TEXT ALGORITHM SEED prints [[step, loss], ...].

Every algorithm starts from the same parameters and sees the same tokens in every step (both are functions of SEED):

- one-model: what every system computes that "trains alike": AdamW on the mean gradient of the batch.
- local-N: as many copies as the batch has sequences, each trained by AdamW on its own; every N steps the mean of their differences
  from the last average goes through SGD with Nesterov's momentum (rate 0.7, momentum 0.9: DiLoCo, arXiv 2311.08105).
- top-F: after every layer but the last, of activations and of their gradients the share F with the largest magnitude is kept in
  each sequence, and the rest is 0 (AdaTopK of FusionLLM, arXiv 2410.12707, with one ratio for all links).
- grown-P: the model begins with 1/P of its layers under the head; in equal parts of the first half of the run the next ones are put on
  top of them (ProgFed, arXiv 2110.05323).

Loss: mean over fixed windows of the validation split, in nats a character, of the model that would be used: the average of local-N.
Model and settings: nanoGPT's small CPU setting, as inputs/learn/tinyshakespeare-gpt2.yaml, for STEPS steps. Needs python3-torch.
"""
import copy
import json
import math
import pathlib
import sys

LAYERS, HEADS, WIDTH, TOKENS, BATCH = 4, 4, 128, 64, 12
STEPS, WARM_UP, RATE, LEAST_RATE, EVALUATE_EVERY, WINDOWS = 1000, 100, 1e-3, 1e-4, 50, 256
ALGORITHMS = ["one-model", "local-500", "local-50", "top-0.035", "grown-4"]


def main():
    import torch
    from torch import nn
    from torch.nn import functional as F

    text, algorithm, seed = pathlib.Path(sys.argv[1]).read_text(), sys.argv[2], int(sys.argv[3])
    kind, _, number = algorithm.partition("-")
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    letters = {letter: i for i, letter in enumerate(sorted(set(text)))}
    tokens = torch.tensor([letters[letter] for letter in text])
    border = len(tokens) * 9 // 10
    train, validation = tokens[:border], tokens[border:]

    class TopK(torch.autograd.Function):
        """Forward and backward keep the largest values of each sequence."""

        @staticmethod
        def keep(x):
            flat = x.flatten(1)
            values, places = flat.abs().topk(max(1, round(float(number) * flat.shape[1])))
            return torch.zeros_like(flat).scatter(1, places, flat.gather(1, places)).view_as(x)

        @staticmethod
        def forward(_, x):
            return TopK.keep(x)

        @staticmethod
        def backward(_, gradient):
            return TopK.keep(gradient)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.attention, self.joined = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
            self.register_buffer("mask", torch.full((TOKENS, TOKENS), float("-inf")).triu(1), persistent=False)

        def forward(self, x):
            size, rows = WIDTH // HEADS, x.shape[0]
            q, k, v = self.attention(self.norm_1(x)).view(rows, TOKENS, 3, HEADS, size).permute(2, 0, 3, 1, 4)
            y = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(size) + self.mask, -1) @ v
            x = x + self.joined(y.transpose(1, 2).reshape(rows, TOKENS, WIDTH))
            return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = nn.Embedding(len(letters), WIDTH), nn.Embedding(TOKENS, WIDTH)
            self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)
            self.used = LAYERS
            for name, p in self.named_parameters():
                if p.dim() > 1:
                    residual = name.endswith(("joined.weight", "down.weight"))
                    nn.init.normal_(p, std=0.02 / math.sqrt(2 * LAYERS) if residual else 0.02)
                elif name.endswith("bias"):
                    nn.init.zeros_(p)

        def forward(self, x, compressed=False):
            h = self.tokens(x) + self.places.weight
            for i, block in enumerate(self.blocks[:self.used]):
                h = block(h)
                if compressed and i + 1 < self.used:
                    h = TopK.apply(h)
            return self.norm(h) @ self.tokens.weight.T

    def loss_of(model, x, y, compressed=False):
        return F.cross_entropy(model(x, compressed).flatten(0, 1), y.flatten())

    def windows(source, starts):
        return tuple(torch.stack([source[s + shift:s + shift + TOKENS] for s in starts.tolist()]) for shift in (0, 1))

    def optimizer_of(model):
        matrices = [p for p in model.parameters() if p.dim() > 1]
        vectors = [p for p in model.parameters() if p.dim() < 2]
        return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}], lr=RATE,
                                 betas=(0.9, 0.99), eps=1e-8)

    def rate_at(step):
        if step < WARM_UP:
            return RATE * (step + 1) / (WARM_UP + 1)
        return LEAST_RATE + 0.5 * (1 + math.cos(math.pi * (step - WARM_UP) / (STEPS - WARM_UP))) * (RATE - LEAST_RATE)

    def update(model, optimizer, rate, x, y):
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad(set_to_none=True)
        loss_of(model, x, y, kind == "top").backward()
        nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], 1.0)
        optimizer.step()

    model = Model()
    copies = [copy.deepcopy(model) for _ in range(BATCH)] if kind == "local" else [model]
    optimizers = [optimizer_of(c) for c in copies]
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    batches = torch.Generator().manual_seed(seed + 1)
    starts = torch.arange(WINDOWS) * ((len(validation) - TOKENS - 1) // WINDOWS)
    fixed = windows(validation, starts)
    curve = []
    for step in range(STEPS + 1):
        if step % EVALUATE_EVERY == 0:
            with torch.no_grad():
                curve.append([step, round(loss_of(model, *fixed, kind == "top").item(), 5)])
            if step == STEPS:
                break
        if kind == "grown":
            part = min(int(number) - 1, step * 2 * (int(number) - 1) // STEPS)
            model.used = LAYERS * (part + 1) // int(number)
        x, y = windows(train, torch.randint(len(train) - TOKENS, (BATCH,), generator=batches))
        share = BATCH // len(copies)
        for i, (one, optimizer) in enumerate(zip(copies, optimizers)):
            part = slice(i * share, (i + 1) * share)
            update(one, optimizer, rate_at(step), x[part], y[part])
        if kind == "local" and (step + 1) % int(number) == 0:
            with torch.no_grad():
                for p, *of_copies in zip(model.parameters(), *(c.parameters() for c in copies)):
                    p.grad = p - torch.stack(of_copies).mean(0)
            outer.step()
            with torch.no_grad():
                for p, *of_copies in zip(model.parameters(), *(c.parameters() for c in copies)):
                    for q in of_copies:
                        q.copy_(p)
    json.dump(curve, sys.stdout)


if __name__ == "__main__":
    main()
