"""Time and peak memory of masked log-probs: full logits, selected positions, `token_logprob`. A script, not a test.

Run ``python tests/perf/bench_token_logprob.py [--device cuda] [--chunk-size 256]``. Each variant runs in a process of
its own, so that its peak resident memory is its own; ratios are against full logits. Forward and backward of the mean
negative log-likelihood over the masked positions, B 16, T 256, d 256, float32.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

B, T, D = 16, 256, 256
VARIANTS = ("full", "selected", "linear_ce", "ours")


def measure(variant: str, vocab: int, share: float, device: str, chunk_size: int, repeats: int) -> dict[str, float]:
    """Run one variant in this process.

    Args:
        variant: one of ``VARIANTS``.
        vocab: V.
        share: masked share of the positions, 0..1.
        device: ``cpu`` or ``cuda``.
        chunk_size: rows per chunk of `token_logprob`.
        repeats: timed repeats; the fastest counts.

    Returns:
        wall_ms, peak_mb (above the inputs), loss and the norm of the gradient of the hidden states.
    """
    import torch
    import torch.nn.functional as F
    from dare_bench.kernels.token_logprob import token_logprob

    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(B, T, D, generator=generator).to(device).requires_grad_()
    weight = (torch.randn(vocab, D, generator=generator) * D**-0.5).to(device).requires_grad_()
    targets = torch.randint(0, vocab, (B, T), generator=generator).to(device)
    is_masked = (torch.rand(B, T, generator=generator) < share).to(device)
    # Both gradients exist in every variant; they are no part of the comparison.
    hidden.grad, weight.grad = torch.zeros_like(hidden), torch.zeros_like(weight)

    def loss() -> torch.Tensor:
        if variant == "full":
            logps = F.log_softmax((hidden @ weight.T).float(), dim=-1)
            return -logps.gather(-1, targets.unsqueeze(-1)).squeeze(-1)[is_masked].mean()
        if variant == "selected":
            return F.cross_entropy((hidden[is_masked] @ weight.T).float(), targets[is_masked])
        if variant == "linear_ce":
            return F.linear_cross_entropy(hidden[is_masked], weight, targets[is_masked])
        return -token_logprob(hidden[is_masked], weight, targets[is_masked], chunk_size=chunk_size).logps.mean()

    def synchronise() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    def peak_mb() -> float:
        if device.startswith("cuda"):
            return torch.cuda.max_memory_allocated() / 2**20
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10

    # The first product starts the maths library, which takes memory of its own.
    (hidden[0, :8] @ weight[:8].T).sum().backward()
    hidden.grad.zero_()
    weight.grad.zero_()
    before_mb = peak_mb()
    value = loss()
    value.backward()
    synchronise()
    extra_mb = peak_mb() - before_mb
    norm = hidden.grad.norm().item()
    walls = []
    for _ in range(repeats):
        start = time.perf_counter()
        loss().backward()
        synchronise()
        walls.append(1000 * (time.perf_counter() - start))
    return {"wall_ms": min(walls), "peak_mb": extra_mb, "loss": value.item(), "grad_norm": norm}


def main() -> None:
    """Measure every variant in every setting and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--chunk-size", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--vocab", type=int, nargs="+", default=[4096, 32768])
    parser.add_argument("--share", type=float, nargs="+", default=[0.15, 0.5])
    parser.add_argument("--variant", choices=VARIANTS, help="measure one variant and print JSON (used internally)")
    options = parser.parse_args()
    if options.variant:
        setting = options.vocab[0], options.share[0]
        print(json.dumps(measure(options.variant, *setting, options.device, options.chunk_size, options.repeats)))
        return
    print(f"B {B}, T {T}, d {D}, forward + backward on {options.device}, chunks of {options.chunk_size} rows")
    print("| V, masked | variant | ms | MB | faster than full | less memory than full |\n|---|---|---|---|---|---|")
    for vocab in options.vocab:
        for share in options.share:
            compare(vocab, share, options)


def compare(vocab: int, share: float, options: argparse.Namespace) -> None:
    """Print the rows of one setting.

    Args:
        vocab: V.
        share: masked share.
        options: device, chunk size and repeats.

    Raises:
        SystemExit: if a variant fails, or computes another loss or gradient than full logits.
    """
    full: dict[str, float] = {}
    for variant in VARIANTS:
        command = [sys.executable, __file__, "--variant", variant, "--vocab", str(vocab), "--share", str(share)]
        command += ["--device", options.device, "--chunk-size", str(options.chunk_size)]
        command += ["--repeats", str(options.repeats)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"variant {variant} failed:\n{done.stderr}")
        row = json.loads(done.stdout)
        full = full or row
        for name in ("loss", "grad_norm"):
            if abs(row[name] - full[name]) > 1e-3 * abs(full[name]):
                raise SystemExit(f"variant {variant} has {name} {row[name]}, full logits have {full[name]}")
        ratios = f"{full['wall_ms'] / row['wall_ms']:.1f}x | {full['peak_mb'] / max(row['peak_mb'], 0.1):.1f}x"
        setting = f"{vocab}, {share:.0%}"
        print(f"| {setting} | {variant} | {row['wall_ms']:.0f} | {row['peak_mb']:.0f} | {ratios} |", flush=True)


if __name__ == "__main__":
    main()
