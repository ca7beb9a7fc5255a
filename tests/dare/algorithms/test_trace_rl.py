"""TraceRL: shrunken traces, shares of rows, both published reductions, prompts dropped by their success rate."""

from __future__ import annotations

import pytest
import torch
from dare_bench.dare.algorithms import registry, trajectories
from dare_bench.dare.algorithms.base import Context, Trace
from dare_bench.dare.algorithms.trace_rl import TraceRL, TraceRLConfig
from dare_bench.dare.diffusion.block import concatenate
from dare_bench.dare.training import replay
from dare_bench.dare.training.replay import score

PROMPTS, RESPONSES, COUNTED = [3, 5, 4, 6], [8, 8, 8, 8], [8, 3, 7, 5]
REWARDS, GROUPS = [1.0, 0.0, 0.0, 1.0], [0, 0, 1, 1]


def traced(make_batch, block_length=0, *, seed=0, **options):
    """Graded responses with random step maps."""
    fields = {"counted": COUNTED, "rewards": REWARDS, "groups": GROUPS} | options
    batch = make_batch(PROMPTS, RESPONSES, block_length=block_length, **fields)
    steps = torch.randint(0, 6, batch.ids.shape, generator=torch.Generator().manual_seed(seed))
    batch.trace = Trace(torch.where(batch.response, steps, -1), limit=8)
    return batch


def rows_of(batch, config=None, **context):
    return concatenate(list(TraceRL(config).rows(batch, Context(**({"run_seed": 0} | context)))))


def scored(rows, batch):
    """How often each position of the batch is a target."""
    seen = torch.zeros_like(batch.ids)
    row, column = rows.mask.nonzero(as_tuple=True)
    return seen.index_put_((rows.owner[row], rows.position_ids[row, column]), torch.ones_like(row), accumulate=True)


class TestRows:
    @pytest.mark.parametrize("block_length", [0, 4])
    @pytest.mark.parametrize("shrink", [0, 1, 2, 5])
    def test_every_counted_token_is_a_target_of_one_row(self, make_batch, block_length, shrink):
        batch = traced(make_batch, block_length)
        rows = rows_of(batch, TraceRLConfig(shrink=shrink))
        assert torch.equal(scored(rows, batch), batch.counted.long())
        blocks = trajectories.decoding_blocks(batch) if block_length else None
        steps = trajectories.step_ranks(batch.trace.step_map, blocks, shrink)
        wanted = [len(steps[row][batch.counted[row]].unique()) for row in range(4)]
        assert torch.bincount(rows.owner).tolist() == wanted

    @pytest.mark.parametrize("block_length", [0, 4])
    def test_all_steps_in_one_mask_every_target(self, make_batch, block_length):
        batch = traced(make_batch, block_length)
        for shrink in (0, 6, 100):
            rows = rows_of(batch, TraceRLConfig(shrink=shrink))
            assert rows.owner.tolist() == [0, 1, 2, 3]
            assert (rows.ids[rows.mask] == batch.mask_token_id).all()

    @pytest.mark.parametrize("shrink", [1, 2, 3])
    def test_neighbouring_steps_read_what_the_first_of_them_read(self, make_batch, shrink):
        batch = traced(make_batch)
        rows = rows_of(batch, TraceRLConfig(shrink=shrink))
        for index in range(len(rows)):
            owner = int(rows.owner[index])
            when = batch.trace.step_map[owner]
            used = sorted(set(when[when >= 0].tolist()))
            first = used[int(rows.draw[index]) * shrink]
            hidden = batch.response[owner] & (when >= first)
            assert torch.equal(rows.ids[index] == batch.mask_token_id, hidden)
            group = used[int(rows.draw[index]) * shrink :][:shrink]
            assert torch.equal(rows.mask[index], batch.counted[owner] & torch.isin(when, torch.tensor(group)))

    def test_one_token_per_step_gives_the_probability_of_the_order(self, tiny, make_batch):
        batch, lm = traced(make_batch, counted=RESPONSES), tiny("llada")
        order = torch.stack([torch.randperm(20, generator=torch.Generator().manual_seed(row))[: batch.ids.shape[1]]
                             for row in range(4)])  # fmt: skip
        batch.trace.step_map = torch.where(batch.response, order, -1)
        rows = rows_of(batch)
        assert (rows.mask.sum(1) == 1).all()
        found = torch.zeros(4, dtype=torch.float64).index_add(0, rows.owner, score(lm, rows).detach()[..., 0].sum(1))
        for row in range(4):
            end, total = int(batch.lengths[row]), 0.0
            ids = torch.where(batch.response[row], batch.mask_token_id, batch.ids[row])[:end]
            for place in order[row].masked_fill(~batch.response[row], 99).argsort()[: RESPONSES[row]].tolist():
                logits = lm.logits(ids[None], mask="full")[0, place].detach().log_softmax(-1)
                total += float(logits[batch.ids[row, place]])
                ids[place] = batch.ids[row, place]
            assert float(found[row]) == pytest.approx(total, abs=1e-9)

    @pytest.mark.parametrize("block_length", [0, 4])
    def test_tokens_behind_the_end(self, make_batch, block_length):
        batch = traced(make_batch, block_length)
        columns = torch.arange(batch.ids.shape[1])
        ends = batch.prompt_lengths + torch.tensor(COUNTED)
        batch.trace.step_map[columns >= ends[:, None]] = -1  # no forward chose them
        rows = rows_of(batch, TraceRLConfig(post_num=2))
        behind = batch.response & (columns >= ends[:, None]) & (columns < ends[:, None] + 2)
        assert torch.equal(scored(rows, batch), (batch.counted | behind).long())
        last = (rows.mask & behind[rows.owner][:, : rows.mask.shape[1]]).any(1) if not block_length else None
        if last is not None:  # they come after every step: whoever has them as targets sees the whole response
            masked = (rows.ids == batch.mask_token_id)[last]
            assert not (masked & batch.counted[rows.owner][last]).any()
        assert torch.equal(scored(rows_of(batch), batch), batch.counted.long())

    def test_tokens_that_no_forward_chose_are_not_scored(self, make_batch):
        batch = traced(make_batch)
        batch.trace.step_map[0, 4] = -1
        expected = batch.counted.clone()
        expected[0, 4] = False
        assert torch.equal(scored(rows_of(batch), batch), expected.long())

    @pytest.mark.parametrize("block_length", [0, 4])
    def test_inner_iterations_take_equal_shares(self, make_batch, block_length):
        batch = traced(make_batch, block_length)
        whole = rows_of(batch)
        shares = [rows_of(batch, None, inner=inner, inner_iterations=3) for inner in range(3)]
        found = [(int(row[0]), int(row[1])) for rows in shares for row in zip(rows.owner, rows.draw, strict=True)]
        assert len(found) == len(set(found))
        assert set(found) == {(int(owner), int(step)) for owner, step in zip(whole.owner, whole.draw, strict=True)}
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        assert len({tuple(rows.owner.tolist()) for rows in shares}) > 1
        both = [rows_of(batch, TraceRLConfig(split_rows=False), inner=inner, inner_iterations=3) for inner in range(2)]
        assert all(torch.equal(rows.owner, whole.owner) for rows in both)
        other = rows_of(batch, None, inner=0, inner_iterations=3, step=1)
        assert not torch.equal(other.owner, shares[0].owner) or not torch.equal(other.draw, shares[0].draw)


class TestAdvantages:
    def test_prompts_by_their_success_rate(self, make_batch):
        rewards = [1.0, 1.0, 1.0, 0.0]
        batch = traced(make_batch, rewards=rewards)  # success rates 1 and 0.5
        assert TraceRL().kept(batch).all()
        algorithm = TraceRL(TraceRLConfig(lowest_success=0.2, highest_success=0.8))
        assert algorithm.kept(batch).tolist() == [False, False, True, True]
        assert algorithm.advantages(batch).tolist() == [0.0, 0.0, 1.0, -1.0]
        rows = rows_of(batch, algorithm.config)
        assert set(rows.owner.tolist()) == {2, 3}
        other = TraceRL(TraceRLConfig(lowest_success=0.5, highest_success=0.5))
        assert other.kept(batch).tolist() == [False, False, True, True]

    def test_responses_near_the_limit_are_wrong(self, make_batch):
        batch = traced(make_batch, rewards=[1.0, 0.5, 1.0, 1.0])  # 8, 3, 7 and 5 of 8 tokens
        assert TraceRL().graded(batch).tolist() == [1.0, 0.5, 1.0, 1.0]
        assert TraceRL(TraceRLConfig(near_limit=0)).graded(batch).tolist() == [0.0, 0.5, 1.0, 1.0]
        assert TraceRL(TraceRLConfig(near_limit=1, wrong=-1.0)).graded(batch).tolist() == [-1.0, 0.5, -1.0, 1.0]
        batch.trace.limit = 20
        assert TraceRL(TraceRLConfig(near_limit=5)).graded(batch).tolist() == [1.0, 0.5, 1.0, 1.0]
        batch.trace.limit = 0  # unknown: the longest response of the batch
        assert TraceRL(TraceRLConfig(near_limit=0)).graded(batch).tolist() == [0.0, 0.5, 1.0, 1.0]

    def test_a_batch_of_dropped_prompts_has_no_loss(self, tiny, make_batch):
        batch, lm = traced(make_batch, rewards=[1.0] * 4), tiny("llada")
        algorithm = TraceRL(TraceRLConfig(highest_success=0.8))
        rows = rows_of(batch, algorithm.config)
        assert not rows.mask.any()
        metrics = replay.backward(lm, algorithm, rows, algorithm.advantages(batch), Context(0))
        assert metrics["loss"] == 0.0
        assert all(weight.grad is None or not weight.grad.any() for weight in lm.model.parameters())
        lm.model.zero_grad()


class TestLoss:
    def outcome(self, batch, *, seed=0, **options):
        """Loss at drawn log-probabilities, and what enters it per row: ratio term and KL of the targets."""
        algorithm = TraceRL(TraceRLConfig(**options))
        rows = rows_of(batch, algorithm.config)
        generator = torch.Generator().manual_seed(seed)
        new = torch.where(rows.mask, -torch.rand(rows.mask.shape, generator=generator).double() - 0.5, 0.0)
        old = torch.where(rows.mask, new + 0.1 * torch.randn(rows.mask.shape, generator=generator).double(), 0.0)
        advantages = algorithm.advantages(batch)
        loss, metrics = algorithm.loss(new[..., None], old[..., None], None, rows, advantages, Context(0))
        d = new - old
        policy = -torch.minimum(
            d.exp() * advantages[rows.owner][:, None], d.exp().clamp(0.8, 1.2) * advantages[rows.owner][:, None]
        )
        return float(loss), metrics, (policy * rows.mask).sum(1), ((-d).exp() + d - 1).sum(1), rows

    def test_reductions(self, make_batch):
        full, blocks = traced(make_batch), traced(make_batch, 4)
        loss, metrics, policy, kl, rows = self.outcome(full, beta=0.5)
        targets = rows.mask.sum(1)
        assert loss == pytest.approx(float((policy / targets + 0.5 * kl).mean()))
        assert metrics["kl"] == pytest.approx(float(kl.sum() / targets.sum()))
        loss, _, policy, kl, rows = self.outcome(full, beta=0.5, reduction="step")
        assert loss == pytest.approx(float(((policy + 0.5 * kl) / rows.mask.sum(1)).mean()))
        loss, _, policy, kl, rows = self.outcome(blocks, beta=0.5)
        assert loss == pytest.approx(float(((policy + 0.5 * kl) / 8).mean()))
        assert loss == pytest.approx(self.outcome(blocks, beta=0.5, reduction="length")[0])
        loss, _, policy, kl, rows = self.outcome(blocks, beta=0.5, reduction="step")
        assert loss == pytest.approx(float(((policy + 0.5 * kl) / rows.mask.sum(1)).mean()))

    @pytest.mark.parametrize("block_length", [0, 4])
    @pytest.mark.parametrize("reduction", ["published", "step", "length"])
    def test_micro_batches_add_up(self, tiny, make_batch, block_length, reduction):
        lm, batch = tiny("sdar" if block_length else "llada"), traced(make_batch, block_length)
        algorithm = TraceRL(TraceRLConfig(reduction=reduction, beta=0.1))
        found = []
        for micro_rows in (1, 3, None):
            lm.model.zero_grad()
            parts = list(algorithm.rows(batch, Context(0)))
            old = [replay.score_all(lm, part, None) - 0.1 * part.mask[..., None] for part in parts]
            metrics = replay.backward(
                lm, algorithm, iter(parts), algorithm.advantages(batch), Context(0), old=old, micro_rows=micro_rows
            )
            found.append((metrics["loss"], metrics["kl"], float(lm.head_weight.grad.norm())))
        lm.model.zero_grad()
        assert found[0] == pytest.approx(found[2], rel=1e-6)
        assert found[1] == pytest.approx(found[2], rel=1e-6)

    def test_the_kl_is_to_the_policy_of_the_rollout(self, make_batch):
        batch = traced(make_batch, rewards=[0.5] * 4)
        assert TraceRL().needs.ref == "none"
        loss, *_ = self.outcome(batch, beta=0.0)
        assert loss == 0.0
        assert self.outcome(batch, beta=0.1)[0] > 0
        algorithm, rows = TraceRL(), rows_of(batch)
        new = torch.where(rows.mask[..., None], -1.0, 0.0).double().requires_grad_()
        loss, metrics = algorithm.loss(new, None, None, rows, algorithm.advantages(batch), Context(0))
        loss.backward()
        assert metrics["kl"] == 0.0
        assert not new.grad.any()


class TestSettings:
    def test_presets(self):
        entry = registry.get("trace_rl")
        configs = {name: entry.config_class(**options) for name, options in entry.presets.items()}
        assert sorted(configs) == ["paper", "repo", "repo-full-attention"]
        assert all(
            (config.advantage, config.beta, config.near_limit) == ("zpop", 0.01, 5) for config in configs.values()
        )
        assert (configs["repo"].shrink, configs["repo-full-attention"].shrink) == (1, 8)
        assert entry.families == {"dream", "llada", "llada2_moe", "llada_moe", "sdar", "sdar_moe"}

    @pytest.mark.parametrize(
        "options",
        [{"shrink": -1}, {"reduction": "mean"}, {"lowest_success": 1.5}, {"near_limit": -1}, {"post_num": -1},
         {"counted": "canvas"}],
    )  # fmt: skip
    def test_refused(self, options):
        with pytest.raises(ValueError, match=rf"{next(iter(options))}: .*allowed"):
            TraceRLConfig(**options)
