#!/usr/bin/env python3
"""Tokens a second of a training step beside PyTorch (and llm.c) on the same cores, model and shapes, in turns.

    python3 bench/compare_cpu.py [--model six-layers] [--rounds 3] [--steps 12] [--layouts] [--kernel] [--llmc FOLDER]
                                 TEXT [OVERRIDE...]

TEXT: any text file; inputs/speed/MODEL.yaml says the model: six-layers or gpt2-124m. In each round cleave runs (server
and two devices, clock off, device ranks bound to cores; with --layouts three times: as plan.layout auto chooses, in
tiles, in stages), then PyTorch with as many threads as there are cores, with attention written as matmul and as baddbmm,
then llm.c's CPU program where a checkout of it is given, then (--kernel) BLIS's micro-kernel alone on all cores for as
many FLOP as the step's products have. Steps before the third of a run do not count. Printed: tokens a second, median and
quartiles over all steps of all rounds; of each round the ratio to PyTorch's better way, and the median of these; and
where a step of the server goes (one more run with output.profile=true).

Checks: all start at ln V nats, V tokens being known to the model; cleave's layouts have the same losses to the bit; and
cleave and PyTorch, which start from the same distribution, end within 0.25 nats of each other (gpt2-124m: both two nats
below the start); else exit code 1.
CLEAVE_INSTRUCTIONS=avx2 in the environment hides AVX-512 from both.
Needs Debian's python3-torch, and to be fair to it libopenblas0-openmp, which this script puts first in its library path.
Edit: nothing.
"""
import argparse
import json
import math
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).resolve().parent.parent
# Layers, heads, width, tokens of a sequence, sequences, vocabulary.
MODELS = {"six-layers": (6, 6, 384, 256, 8, 256), "gpt2-124m": (12, 12, 768, 512, 4, 50257)}
MODEL = next((sys.argv[i + 1] for i, a in enumerate(sys.argv[:-1]) if a == "--model"), "six-layers")
if MODEL not in MODELS:
    sys.exit(f"compare_cpu: no model {MODEL}; {', '.join(MODELS)}")
INPUT = TOP / "inputs" / "speed" / f"{MODEL}.yaml"
LAYERS, HEADS, WIDTH, TOKENS, BATCH, VOCABULARY = MODELS[MODEL]
WARM_UP = 2
ALONE = "micro-kernel alone"
KERNELS = TOP / "build" / "release" / "bench" / "kernels_bench"
CORES = os.cpu_count()


def torch_steps(text, steps, attention):
    """Runs in a process of its own: prints a JSON list of [seconds, loss]."""
    import time

    import torch
    from torch import nn
    from torch.nn import functional as F

    torch.manual_seed(1)
    torch.set_num_threads(CORES)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.c_attn, self.attn_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.c_fc, self.mlp_proj = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
            self.register_buffer("mask", torch.full((TOKENS, TOKENS), float("-inf")).triu(1))

        def forward(self, x):
            size = WIDTH // HEADS
            q, k, v = self.c_attn(self.ln_1(x)).view(BATCH, TOKENS, 3, HEADS, size).permute(2, 0, 3, 1, 4)
            if attention == "matmul":
                scores = q @ k.transpose(-2, -1) / math.sqrt(size) + self.mask
                y = torch.softmax(scores, -1) @ v
            else:
                q, k, v = (t.reshape(BATCH * HEADS, TOKENS, size) for t in (q, k, v))
                scores = torch.baddbmm(self.mask, q, k.transpose(1, 2), alpha=1 / math.sqrt(size))
                y = torch.bmm(torch.softmax(scores, -1), v).view(BATCH, HEADS, TOKENS, size)
            x = x + self.attn_proj(y.transpose(1, 2).reshape(BATCH, TOKENS, WIDTH))
            return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
            self.blocks, self.ln_f = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)
            for name, parameter in self.named_parameters():
                if parameter.dim() == 2:
                    deviation = 0.02 / math.sqrt(2 * LAYERS) if "proj" in name else 0.02
                    nn.init.normal_(parameter, 0.0, deviation)
                elif name.endswith("bias"):
                    nn.init.zeros_(parameter)

        def forward(self, tokens, targets):
            x = self.wte(tokens) + self.wpe.weight
            for block in self.blocks:
                x = block(x)
            return F.cross_entropy((self.ln_f(x) @ self.wte.weight.t()).view(-1, VOCABULARY), targets.view(-1))

    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    data = torch.frombuffer(bytearray(pathlib.Path(text).read_bytes()), dtype=torch.uint8).long()
    out = []
    for _ in range(steps):
        starts = torch.randint(len(data) - TOKENS - 1, (BATCH,))
        tokens = torch.stack([data[s : s + TOKENS] for s in starts])
        targets = torch.stack([data[s + 1 : s + TOKENS + 1] for s in starts])
        begun = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = model(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        value = loss.item()
        out.append([time.perf_counter() - begun, value])
    print(json.dumps(out))


def python_with_torch():
    for candidate in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([candidate, "-c", "import torch"], capture_output=True).returncode == 0:
            return candidate
    sys.exit("compare_cpu: no PyTorch; apt-get install python3-torch libopenblas0-openmp")


def torch_capability():
    """The best that the processor offers, by PyTorch's names: it takes less than AVX-512 by itself on some, and obeys
    whoever asks for more than there is."""
    if os.environ.get("CLEAVE_INSTRUCTIONS") in ("avx2", "baseline"):
        return {"avx2": "avx2", "baseline": "default"}[os.environ["CLEAVE_INSTRUCTIONS"]]
    flags = set(re.search(r"^flags\s*:(.*)$", pathlib.Path("/proc/cpuinfo").read_text() + "\nflags :", re.M)[1].split())
    if {"avx512f", "avx512dq", "avx512bw", "avx512vl", "fma"} <= flags:
        return "avx512"
    return "avx2" if {"avx2", "fma"} <= flags else "default"


def run_torch(python, text, steps, attention):
    # Whoever made the environment may have held OpenBLAS to other kernels than the processor's.
    env = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}
    env |= {"OMP_NUM_THREADS": str(CORES), "ATEN_CPU_CAPABILITY": torch_capability()}
    if torch_capability() == "avx2":  # where AVX-512 is hidden from cleave it is hidden from OpenBLAS and oneDNN too
        env |= {"OPENBLAS_CORETYPE": "Haswell", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    blas = pathlib.Path("/usr/lib/x86_64-linux-gnu/openblas-openmp")
    if blas.is_dir():
        env["LD_LIBRARY_PATH"] = f"{blas}:{env.get('LD_LIBRARY_PATH', '')}".rstrip(":")
    done = subprocess.run([python, __file__, text, "--model", MODEL, "--steps", str(steps), "--torch", attention], env=env,
                          check=True, capture_output=True, text=True, timeout=1200)
    return json.loads(done.stdout)


def run_cleave(text, steps, overrides, keep=None):
    model = {"n_layer": LAYERS, "n_head": HEADS, "d_model": WIDTH, "d_ff": 4 * WIDTH, "seq_len": TOKENS,
             "vocab_size": VOCABULARY}
    shape = [f"model.{key}={value}" for key, value in model.items()] + [f"train.batch={BATCH}"]
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        subprocess.run(["bash", TOP / "jobs" / "run.sh", INPUT, "3", f"data.text={text}", f"train.steps={steps}",
                        f"output.dir={run}", "--quiet", *shape, *overrides], check=True, capture_output=True, timeout=1800,
                       env=os.environ | {"CLEAVE_PIN": "1"})
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        records = [r for r in records if "wall_s" in r]
        if keep is not None:
            keep.extend(records)
        return [[r["wall_s"], r["loss"]] for r in records]


def build_llmc(checkout, folder, text, steps):
    """llm.c's train_gpt2 for this model: its constants changed, a random model and the text in its formats."""
    import array
    import random

    checkout = pathlib.Path(checkout).resolve()
    source = (checkout / "train_gpt2.c").read_text()
    for old, new in (("int B = 4;", f"int B = {BATCH};"), ("int T = 64;", f"int T = {TOKENS};"),
                     ("step <= 40", f"step < {steps}"), ("if (step % 10 == 0)", "if (0)"),
                     ("if (step > 0 && step % 20 == 0)", "if (0)")):
        if old not in source:
            sys.exit(f"compare_cpu: {checkout}/train_gpt2.c has no '{old}': another version than this script knows")
        source = source.replace(old, new)
    (folder / "train_gpt2.c").write_text(source)
    shutil.copytree(checkout / "llmc", folder / "llmc")
    subprocess.run("gcc -O3 -march=native -Ofast -fno-finite-math-only -fopenmp -DOMP train_gpt2.c -lm -o train_gpt2",
                   shell=True, cwd=folder, check=True, capture_output=True)
    L, C, V, T = LAYERS, WIDTH, VOCABULARY, TOKENS
    draw = random.Random(1)
    sizes = [(V * C, 0.02), (T * C, 0.02), (L * C, 1), (L * C, 0), (L * 3 * C * C, 0.02), (L * 3 * C, 0),
             (L * C * C, 0.02 / math.sqrt(2 * L)), (L * C, 0), (L * C, 1), (L * C, 0), (L * 4 * C * C, 0.02),
             (L * 4 * C, 0), (L * 4 * C * C, 0.02 / math.sqrt(2 * L)), (L * C, 0), (C, 1), (C, 0)]
    with open(folder / "gpt2_124M.bin", "wb") as out:
        array.array("i", [20240326, 3, T, V, L, HEADS, C, V] + [0] * 248).tofile(out)
        for count, scale in sizes:
            values = [draw.gauss(0, scale) for _ in range(count)] if 0 < scale < 1 else [scale] * count
            array.array("f", values).tofile(out)
    data = folder / "dev" / "data" / "tinyshakespeare"
    data.mkdir(parents=True)
    tokens = pathlib.Path(text).read_bytes()
    for name in ("train", "val"):
        with open(data / f"tiny_shakespeare_{name}.bin", "wb") as out:
            array.array("i", [20240520, 1, len(tokens)] + [0] * 253).tofile(out)
            array.array("H", list(tokens)).tofile(out)


def run_llmc(folder):
    env = dict(os.environ, OMP_NUM_THREADS=str(CORES))
    out = subprocess.run(["./train_gpt2"], cwd=folder, env=env, check=True, capture_output=True, text=True,
                         timeout=1800).stdout
    return [[float(ms) / 1e3, float(loss)] for loss, ms in re.findall(r"train loss ([\d.]+) \(took ([\d.]+) ms\)", out)]


def step_flop():
    """FLOP of a step's matrix products, forward and backward: three of each with weights; of attention the causal half,
    2 products forward and 5 backward, which computes the scores again."""
    tokens = BATCH * TOKENS
    weights = LAYERS * 12 * WIDTH * WIDTH + WIDTH * VOCABULARY
    return 6 * tokens * weights + LAYERS * tokens * 7 * TOKENS * WIDTH


def run_micro_kernel():
    """Tokens a second that nobody who multiplies with BLIS's micro-kernel can beat: the step's products at the rate that
    it has on all cores at once, operands in the caches."""
    if not KERNELS.exists():
        sys.exit(f"compare_cpu: {KERNELS} is not there: it is built where Google Benchmark is (jobs/setup.sh)")
    out = subprocess.run([KERNELS, "--benchmark_filter=micro_kernel", "--benchmark_format=json"], check=True,
                         capture_output=True, text=True, timeout=300).stdout
    rate = json.loads(out)["benchmarks"][0]["FLOP/s"]
    return BATCH * TOKENS * rate / step_flop()


def ends_fit(ours, theirs):
    """In six-layers the two end within 0.25 nats. GPT-2 of 124 million parameters with a learning rate of 1e-3 from the
    first step is restless: PyTorch's own seeds are 2 nats apart after seven steps, so both are to have learned."""
    if MODEL == "six-layers":
        return abs(ours - theirs) <= 0.25
    return max(ours, theirs) < math.log(VOCABULARY) - 2


def tokens_per_second(steps):
    return [BATCH * TOKENS / seconds for seconds, _ in steps[WARM_UP:]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("overrides", nargs="*", help="of cleave's input, after --")
    parser.add_argument("--model", choices=list(MODELS), default="six-layers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--layouts", action="store_true", help="cleave in tiles and in stages beside what auto chooses")
    parser.add_argument("--kernel", action="store_true", help="besides, the time of BLIS's micro-kernel alone")
    parser.add_argument("--llmc", metavar="FOLDER", help="a checkout of github.com/karpathy/llm.c")
    parser.add_argument("--torch", help=argparse.SUPPRESS)
    options = parser.parse_args()
    text = str(pathlib.Path(options.text).resolve())
    if options.llmc and MODEL != "six-layers":
        sys.exit("compare_cpu: llm.c is built for six-layers")
    if options.torch:
        return torch_steps(text, options.steps, options.torch)
    python = python_with_torch()

    with tempfile.TemporaryDirectory() as scratch:
        systems = {"cleave": lambda: run_cleave(text, options.steps, options.overrides)}
        for layout in ("tiles", "stages") if options.layouts else ():
            forced = [*options.overrides, f"plan.layout={layout}"]
            systems[f"cleave, {layout}"] = lambda forced=forced: run_cleave(text, options.steps, forced)
        systems |= {"PyTorch, matmul": lambda: run_torch(python, text, options.steps, "matmul"),
                    "PyTorch, baddbmm": lambda: run_torch(python, text, options.steps, "baddbmm")}
        if options.llmc:
            folder = pathlib.Path(scratch)
            build_llmc(options.llmc, folder, text, options.steps)
            systems["llm.c"] = lambda: run_llmc(folder)
        rates = {name: [] for name in systems}
        ratios = {name: [] for name in systems if not name.startswith("PyTorch")}
        if options.kernel:
            rates[ALONE], ratios[ALONE] = [], []
        good = True
        for _ in range(options.rounds):
            steps = {name: run() for name, run in systems.items()}
            medians = {name: statistics.median(tokens_per_second(s)) for name, s in steps.items()}
            best = max(m for name, m in medians.items() if name.startswith("PyTorch"))
            if options.kernel:
                rates[ALONE].append(run_micro_kernel())
                ratios[ALONE].append(rates[ALONE][-1] / best)
            for name, s in steps.items():
                rates[name] += tokens_per_second(s)
                if abs(s[0][1] - math.log(VOCABULARY)) > 0.15:
                    print(f"{name} starts at a loss of {s[0][1]:.3f}, not ln {VOCABULARY}")
                    good = False
                if name in ratios:
                    ratios[name].append(medians[name] / best)
                if name.startswith("cleave,") and [loss for _, loss in s] != [loss for _, loss in steps["cleave"]]:
                    print(f"{name}: other losses than cleave's own choice of layout")
                    good = False
            # A rare byte can spoil the loss of one batch, so the end is the median of three.
            ends = {name: statistics.median(loss for _, loss in s[-3:]) for name, s in steps.items()}
            if not ends_fit(ends["cleave"], ends["PyTorch, matmul"]):
                print(f"losses at the end: {ends['cleave']:.3f}, {ends['PyTorch, matmul']:.3f}")
                good = False

    print(f"{MODEL}: {LAYERS} layers, d {WIDTH}, {BATCH} x {TOKENS} tokens, fp32, {CORES} cores, {options.rounds} rounds of "
          f"{options.steps} steps")
    print(f"{'':18} {'tokens/s':>9} {'quartiles':>15} {'of PyTorch, by round':>28}")
    for name, values in rates.items():
        low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
        told = ""
        if name in ratios:
            told = f"{statistics.median(ratios[name]):.2f}  ({', '.join(f'{r:.2f}' for r in ratios[name])})"
        print(f"{name:18} {middle:9.0f} {low:7.0f} {high:7.0f} {told:>28}")
    if "llm.c" in rates:
        print(f"cleave / llm.c: {statistics.median(rates['cleave']) / statistics.median(rates['llm.c']):.2f}")
    records = []
    run_cleave(text, options.steps, [*options.overrides, "output.profile=true"], records)
    phases = {}
    for record in records[WARM_UP:]:
        for phase, seconds in record["phases_s"].items():
            phases.setdefault(phase, []).append(seconds)
    print("the server's step: " + ", ".join(f"{p} {statistics.mean(s) * 1e3:.0f} ms" for p, s in phases.items()))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
