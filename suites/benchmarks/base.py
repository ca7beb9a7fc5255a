"""What a benchmark is: rows, prompt, protocol, scorer, training split and reward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dare_bench.suites import data, prompts
from dare_bench.suites.errors import DataError, NotScorableError, SuiteError, unknown_name
from dare_bench.suites.scoring import registry as scoring

if TYPE_CHECKING:
    from dare_bench.suites.rewards import Reward

#: Keys of a training example that a benchmark's own columns may not have.
RESERVED = frozenset(
    {"id", "prompt", "completion", "question", "gold", "prompts", "completions", "columns",
     "chosen", "rejected"}
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One question.

    Attributes:
        id: unique in its benchmark and split, stable over versions.
        question: text that goes into the protocol's template.
        gold: the right answer, in the form its scorer reads.
        columns: further fields for scorer and reward.
        cluster: rows of one cluster are not independent (same template or passage); null = its own.
        solution: worked answer, in the form the default protocol asks for; null where none is published.
    """

    id: str
    question: str
    gold: str
    columns: Mapping[str, Any] = field(default_factory=dict)
    cluster: str | None = None
    solution: str | None = None


@dataclass(frozen=True)
class Protocol:
    r"""How a benchmark is asked and graded; a score belongs to one protocol.

    Attributes:
        id: name, for example ``std-1``.
        system: system prompt; null = none.
        template: user turn with ``{question}``.
        few_shot: number of worked examples before the question, the first rows of the training split.
        gen_length: tokens to generate, if the decoder does not say otherwise.
        scorer: name of the scorer; null = answers cannot be graded yet.
    """

    id: str
    system: str | None
    template: str
    few_shot: int
    gen_length: int
    scorer: str | None


class Benchmark(ABC):
    """One benchmark; subclasses set the attributes and read their rows.

    Attributes:
        name: what users write.
        title: name for pages.
        description: one line: what it measures and where the rows come from.
        version: bumped when rows or prompts change.
        protocols: by id.
        default_protocol: id of the one used when none is asked for.
        splits: names of the splits; ``test`` is scored, ``train`` is trained on.
        columns: columns of rows, beside question and gold, that rewards may read.
        not_scorable: why answers cannot be graded, with what will change that; null = they can.
        pairs_version: bumped when the rejected answers of preference pairs change; null = the benchmark has no pairs.
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    description: ClassVar[str] = ""
    version: ClassVar[int] = 1
    protocols: ClassVar[Mapping[str, Protocol]] = {}
    default_protocol: ClassVar[str] = "std-1"
    splits: ClassVar[tuple[str, ...]] = ("train", "validation", "test")
    columns: ClassVar[tuple[str, ...]] = ()
    not_scorable: ClassVar[str | None] = None
    pairs_version: ClassVar[int | None] = None

    @abstractmethod
    def _load(self, split: str, data_dir: str | Path | None) -> tuple[list[Row], dict[str, Any]]:
        """Returns all rows of a valid split and the identity of the data (keys id, sha256, split, n; revision)."""

    def rows(self, split: str = "test", *, data_dir: str | Path | None = None, limit: int | None = None) -> list[Row]:
        """Reads the rows of a split, verified.

        Args:
            split: one of `splits`.
            data_dir: folder with local data for benchmarks that are not shipped; null = the hub.
            limit: only the first rows; null = all.

        Returns:
            Rows in the published order.

        Raises:
            DataError: rows are missing, damaged or not the published ones.
            UnknownNameError: no such split.
        """
        rows, _ = self._checked(split, data_dir)
        return data.first_rows(rows, limit)

    def data_id(self, split: str = "test", data_dir: str | Path | None = None) -> dict[str, Any]:
        """Returns what identifies the rows of a split in results: id, revision (where there is one), sha256, split, n.

        Args:
            split: one of `splits`.
            data_dir: see `rows`. The identity does not depend on it: the same rows are the same data.

        Returns:
            A dictionary of JSON values; `n` counts the whole split, before any limit.

        Raises:
            DataError: as `rows`.
        """
        return self._checked(split, data_dir)[1]

    def protocol(self, protocol: str | None = None) -> Protocol:
        """Returns a protocol by id, the default one for null.

        Raises:
            UnknownNameError: the benchmark has no such protocol.
        """
        wanted = self.default_protocol if protocol is None else protocol
        if wanted not in self.protocols:
            raise unknown_name(f"protocol of {self.name}", wanted, self.protocols)
        return self.protocols[wanted]

    def scorer(self, protocol: str | None = None) -> scoring.Scorer:
        """Returns the scorer of a protocol.

        Raises:
            NotScorableError: answers of this benchmark cannot be graded; the message says why.
        """
        name = self.protocol(protocol).scorer
        if name is None or self.not_scorable:
            reason = self.not_scorable or f"protocol {self.protocol(protocol).id} names no scorer"
            raise NotScorableError(f"benchmark {self.name!r} cannot be scored: {reason}")
        return scoring.get(name)

    @property
    def row_columns(self) -> frozenset[str]:
        """Columns that the rows have beside question and gold, known without reading them."""
        return frozenset(self.columns)

    @property
    def is_scorable(self) -> bool:
        """Whether the default protocol's answers can be graded."""
        return self.not_scorable is None and self.protocol().scorer is not None

    def shots(self, protocol: str | None = None, *, data_dir: str | Path | None = None) -> list[Row]:
        """Returns the worked examples of a protocol: the first rows of the training split, none for zero-shot.

        Raises:
            DataError: as `rows`.
        """
        count = self.protocol(protocol).few_shot
        return self.rows("train", data_dir=data_dir, limit=count) if count else []

    def messages(self, row: Row, protocol: str | None = None, shots: Sequence[Row] = ()) -> list[prompts.Message]:
        """Renders the prompt of a row.

        Args:
            row: the question.
            protocol: protocol id; null = default.
            shots: what `shots` returned for the protocol.

        Returns:
            Chat messages that end with a user turn; the model's chat template is applied later.

        Raises:
            SuiteError: the number of shots is not the protocol's, or a shot has no worked answer.
        """
        chosen = self.protocol(protocol)
        if len(shots) != chosen.few_shot:
            raise SuiteError(
                f"protocol {chosen.id} of {self.name} takes {chosen.few_shot} worked examples, {len(shots)} are given; "
                "pass what shots() returns"
            )
        pairs = [(shot.question, self._worked(shot)) for shot in shots]
        return prompts.conversation(chosen.template, row.question, system=chosen.system, shots=pairs)

    def training_examples(
        self,
        split: str = "train",
        *,
        protocol: str | None = None,
        data_dir: str | Path | None = None,
        limit: int | None = None,
        pairs: bool = False,
    ) -> list[dict[str, Any]]:
        """Returns examples for training, in TRL's prompt/completion format with the columns rewards read.

        Args:
            split: one of `splits`.
            protocol: its prompt is used, without worked examples.
            data_dir: see `rows`.
            limit: only the first rows; null = all.
            pairs: add ``chosen`` (the worked answer) and ``rejected`` (a wrong one): TRL's preference format.

        Returns:
            One dictionary a row: ``id``, ``prompt`` (messages), ``completion`` (worked answer text), ``question``,
            ``gold`` and the row's columns.

        Raises:
            DataError: as `rows`, or a row has no worked answer.
            SuiteError: pairs are asked of a benchmark that has none.
        """
        chosen = self.protocol(protocol)
        examples = []
        for row in self.rows(split, data_dir=data_dir, limit=limit):
            clash = RESERVED & set(row.columns)
            if clash:
                raise SuiteError(f"{self.name}: column {sorted(clash)[0]!r} is reserved; allowed: any other name")
            examples.append(
                {
                    "id": row.id,
                    "prompt": prompts.conversation(chosen.template, row.question, system=chosen.system),
                    "completion": self._worked(row),
                    "question": row.question,
                    "gold": row.gold,
                    **row.columns,
                    **({"chosen": self._worked(row), "rejected": self._rejected(row)} if pairs else {}),
                }
            )
        return examples

    def _rejected(self, row: Row) -> str:
        """Returns a wrong answer of the same form as the worked one; equal rows, equal answers."""
        raise SuiteError(
            f"{self.name} has no preference pairs for the row {row.id}; train on a benchmark that has them"
        )

    def reward(self, kind: str = "exact", protocol: str | None = None) -> Reward:
        """Returns a reward function with TRL's signature ``(prompts, completions, **columns) -> list[float]``.

        Args:
            kind: name of a reward (`suites/rewards`).
            protocol: protocol whose scorer judges; null = default.

        Returns:
            The function; it reads the columns of `training_examples`.

        Raises:
            NotScorableError: answers cannot be graded.
            UnknownNameError: no such reward.
        """
        from dare_bench.suites import rewards  # imported here: rewards build on this module

        return rewards.make(self, kind, protocol=protocol)

    def _worked(self, row: Row) -> str:
        """Returns the worked answer of a row or raises DataError."""
        if row.solution is None:
            raise DataError(f"{self.name}: row {row.id} has no worked answer; train on a split that has them")
        return row.solution

    def _checked(self, split: str, data_dir: str | Path | None) -> tuple[list[Row], dict[str, Any]]:
        """Reads a split; refuses unknown splits and repeated ids."""
        if split not in self.splits:
            raise unknown_name(f"split of {self.name}", split, self.splits)
        rows, identity = self._load(split, data_dir)
        if len({row.id for row in rows}) != len(rows):
            raise DataError(f"{self.name}/{split}: row ids repeat; each row needs its own")
        return rows, identity
