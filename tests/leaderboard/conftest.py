"""A made-up results database, written through the real store: every state and shape the pages must show."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from dare_bench.results.keys import hard_key
from dare_bench.results.store import Store

ENVIRONMENT = {
    "source": {"kind": "checkout", "commit": "0123456789abcdef0123456789abcdef01234567", "dirty": True},
    "packages": {"torch": "2.13.0", "transformers": "5.24.0"},
    "python": "CPython 3.11.7",
    "cpu": {"model": "Made-up CPU", "count": 2},
    "gpus": [],
}
WORDS = [
    "A",
    "farmer",
    "has",
    "12",
    "eggs",
    "and",
    "sells",
    "5,",
    "so",
    "7",
    "are",
    "left.",
    "The",
    "answer",
    "is",
    "7.",
]


def sha(*parts: object) -> str:
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()


def hard_fields(benchmark: str, gen_length: int = 64) -> dict:
    return {
        "dataset": {"id": benchmark, "revision": sha(benchmark)[:12], "split": "test"},
        "prompt": {"rendered": sha("prompt", benchmark)[:12], "system": None},
        "decode_budget": {"max_new_tokens": gen_length, "nfe": "unbounded"},
    }


def trajectory(rng: random.Random, n: int, block: int = 8) -> dict:
    steps, step = [0] * n, 0
    for start in range(0, n, block):
        order = list(range(start, min(start + block, n)))
        rng.shuffle(order)
        for i in range(0, len(order), 2):
            for position in order[i : i + 2]:
                steps[position] = step
            step += 1
    pieces = [(" " if i else "") + WORDS[i % len(WORDS)] for i in range(n)]
    return {
        "token_ids": list(range(n)),
        "pieces": pieces,
        "step_map": steps,
        "confidence": [round(rng.uniform(0.3, 1.0), 3) for _ in range(n)],
        "convention": "row-forward-0",
        "block_starts": list(range(0, n, block)),
        "kinds": ["prefill+denoise" if i == 0 else "store+denoise" if i % 4 == 0 else "denoise" for i in range(step)],
    }


def sample(benchmark: str, i: int, rng: random.Random, **changes: object) -> dict:
    n = rng.randint(12, 40)
    row = {
        "sample_id": f"{benchmark}-{i:04d}",
        "prompt": f"<|user|>\nQuestion {i}: how many eggs are left?\n<|assistant|>\n",
        "question": f"Question {i}: a farmer has {i + 12} eggs and sells 5. How many eggs are left?",
        "gold": str(i + 7),
        "text": f"He has {i + 12} - 5 = {i + 7} eggs left. The answer is \\boxed{{{i + 7}}}.",
        "finish_reason": "stop" if rng.random() < 0.9 else "length",
        "nfe": max(4, n // 2 + rng.randint(-2, 2)),
        "row_forwards": n // 2,
        "positions_fed": n * 8,
        "kv_read": n * 64,
        "tokens_committed": n,
        "tokens_text": n - 2,
        "flops": 1e9 * n,
        "wall_s": 0.05,
    }
    return {**row, **changes}


class Maker:
    """Writes cells; `cell()` returns the columns of the grid row it made."""

    def __init__(self, store: Store, n: int) -> None:
        self.store, self.n = store, n
        self.environment_id = store.environment(ENVIRONMENT)
        self.cells: list[dict] = []

    def train(self, model: str, label: str, seed: int, *, status: str = "done", error: str | None = None) -> str:
        fp = sha("train", model, label, seed)
        run = self.store.begin_training(
            fp, model=model, family="sdar", algorithm=label, label=label, preset="dare", seed=seed,
            config={"steps": 40, "lr": 1e-4, "peft": {"r": 32}}, totals={}, environment_id=self.environment_id,
        )  # fmt: skip
        points = [
            (s, {"loss": 2.0 / (s + 1) + 0.01 * seed, "reward": s / 40, "lr": 1e-4}, {"step_s": 0.1})
            for s in range(0, 40, 2)
        ]
        self.store.add_training_points(run, points)
        if status == "done":
            self.store.add_checkpoint(run, 40, f"train/{fp[:8]}/final", sha("weights", fp), is_final=True)
        totals = {"train_tokens": 1_250_000, "rollout_tokens": 40_000, "devices": 1}
        self.store.finish_training(run, status, totals=totals, wall_s=1800.0, error=error)
        return fp

    def cell(
        self,
        model: str,
        label: str,
        benchmark: str,
        decoder: str,
        seed: int,
        *,
        rate: float = 0.5,
        training: str | None = None,
        state: str = "done",
        fields: dict | None = None,
        samples: list[dict] | None = None,
        traces: int = 3,
        greedy: bool = True,
        error: str | None = None,
        trace: dict | None = None,
        decode_wall_s: float = 4.0,
        statuses: dict[int, str] | None = None,
    ) -> dict:
        eval_seed = None if greedy else seed
        fp = sha("eval", model, label, benchmark, decoder, training, eval_seed, fields)
        columns = {
            "name": f"{model}/{label}/{benchmark}/{decoder}/{seed}", "model": model, "label": label, "algorithm": label,
            "benchmark": benchmark, "decoder": decoder, "seed": seed, "training_fingerprint": training,
            "evaluation_fingerprint": fp, "scoring_fingerprint": sha("score", fp),
        }  # fmt: skip
        self.cells.append(columns)
        if state == "not run" or self.store.done("evaluation", [fp]):
            return columns
        used = fields or hard_fields(benchmark)
        evaluation = self.store.begin_evaluation(
            fp, model=model, family="sdar", benchmark=benchmark, protocol="std-1", seed=eval_seed,
            decoder={"selector": "low_confidence", "temperature": 0.0, "gen_length": 64}, hard_key=hard_key(used),
            hard_fields=used, numerics={"device": "cpu", "dtype": "float32", "batch_size": 64},
            data={"id": benchmark, "split": "test", "sha256": sha(benchmark)}, n_expected=self.n,
            environment_id=self.environment_id,
        )  # fmt: skip
        rng = random.Random(fp)
        rows = samples or [sample(benchmark, i, rng) for i in range(self.n)]
        kept = rows[: self.n // 3] if state in ("running", "failed") else rows
        batch = [
            (row, trace or trajectory(rng, row["tokens_committed"]) if i < traces else None)
            for i, row in enumerate(kept)
        ]
        self.store.add_samples(evaluation, batch, decode_wall_s)
        if state == "failed":
            self.store.finish_evaluation(
                evaluation, "failed", wall_s=3.0, error=error or "OutOfMemory: 9 GiB asked, 8 free"
            )
        if state in ("running", "failed"):
            return columns
        self.store.finish_evaluation(evaluation, "done", wall_s=6.0)
        # Shared difficulty: the same questions are hard for everybody, as in life.
        scores = []
        for i, row in enumerate(rows):
            easy = random.Random(f"{benchmark}{i}").random()
            right = 0.6 * easy + 0.4 * rng.random() < rate
            status = (statuses or {}).get(i, "scored" if right or rng.random() < 0.8 else "no_answer")
            right = right and status == "scored"
            lenient = right or (status == "scored" and rng.random() < 0.15)
            scores.append(
                {
                    "sample_id": row["sample_id"],
                    "value": float(right),
                    "status": status,
                    "extracted": row["gold"] if right else None,
                    "metrics": {"strict": float(right), "value": float(lenient)},
                    "detail": "boxed answer" if right else "no boxed answer",
                }
            )
        if state == "error":
            scores[0] |= {"status": "error", "value": 0.0}
        self.store.write_scoring(columns["scoring_fingerprint"], evaluation, "number", 1, scores)
        return columns

    def finish(self, suite: str = "mini") -> None:
        run = self.store.begin_suite(
            suite, f"suite: {suite}\n", {"suite": suite, "seeds": [0, 1, 2]}, f"dare-bench run {suite}.yaml --jobs 1",
            self.environment_id, self.cells,
        )  # fmt: skip
        self.store.finish_suite(run, "done")
        self.cells = []


def fill(store: Store, *, models=("tiny-sdar",), labels=("sft", "d1"), benchmarks=("mini_gsm", "mini_choice"),
         decoders=("default", "fast"), seeds=(0, 1, 2), n: int = 60, suite: str = "mini") -> Maker:  # fmt: skip
    """A whole healthy grid: a greedy base and trained rows."""
    maker = Maker(store, n)
    for model in models:
        for label in ("base", *labels):
            for seed in seeds:
                training = None if label == "base" else maker.train(model, label, seed)
                for benchmark in benchmarks:
                    for decoder in decoders:
                        gain = 0.0 if label == "base" else 0.2 if label == "sft" else 0.02 * seed
                        maker.cell(
                            model, label, benchmark, decoder, seed, training=training,
                            rate=0.45 + gain - 0.05 * (decoder == "fast"),
                        )  # fmt: skip
    maker.finish(suite)
    return maker


@pytest.fixture
def empty_store(tmp_path: Path):
    with Store.open(f"sqlite:///{tmp_path / 'empty.db'}") as store:
        yield store


@pytest.fixture
def tools():
    """The makers above, for tests that need their own cells (test files cannot import each other)."""
    return SimpleNamespace(
        Maker=Maker, fill=fill, sample=sample, trajectory=trajectory, hard_fields=hard_fields, sha=sha
    )


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory):
    """A healthy grid plus a second model with one seed and every unhappy state, and a row under another key."""
    place = tmp_path_factory.mktemp("store") / "dare-bench.db"
    with Store.open(f"sqlite:///{place}") as opened:
        maker = Maker(opened, 60)
        for label in ("base", "sft", "d1"):
            for seed in (0, 1, 2):
                training = None if label == "base" else maker.train("tiny-sdar", label, seed)
                for benchmark in ("mini_gsm", "mini_choice"):
                    for decoder in ("default", "fast"):
                        gain = {"base": 0.0, "sft": 0.2}.get(label, 0.02 * seed) - 0.05 * (decoder == "fast")
                        maker.cell("tiny-sdar", label, benchmark, decoder, seed, rate=0.45 + gain, training=training)
        maker.cell("tiny-llada", "base", "mini_gsm", "default", 0, rate=0.4)
        maker.cell("tiny-llada", "base", "mini_choice", "default", 0, rate=0.3)
        sft = maker.train("tiny-llada", "sft", 0)
        maker.cell("tiny-llada", "sft", "mini_gsm", "default", 0, rate=0.7, training=sft)
        maker.cell("tiny-llada", "sft", "mini_choice", "default", 0, training=sft, state="failed")
        broken = maker.train("tiny-llada", "vrpo", 0, status="failed", error="loss is not finite at step 7\ntrace ...")
        maker.cell("tiny-llada", "vrpo", "mini_gsm", "default", 0, training=broken, state="not run")
        maker.cell("tiny-llada", "vrpo", "mini_choice", "default", 0, training=broken, state="not run")
        spg = maker.train("tiny-llada", "spg", 0)
        maker.cell("tiny-llada", "spg", "mini_gsm", "default", 0, training=spg, state="running")
        maker.cell("tiny-llada", "spg", "mini_choice", "default", 0, training=spg, state="error", rate=0.5)
        longer = hard_fields("mini_gsm", gen_length=128)
        maker.cell("tiny-sdar", "base", "mini_gsm", "long", 0, rate=0.5, fields=longer)
        maker.finish()
        yield opened
