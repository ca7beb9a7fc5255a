"""The manifest's shape as pydantic models.

What a name means (does the model exist, does the algorithm support its family) is checked in `resolve.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from dare_bench.harness import manifest_yaml
from dare_bench.harness.errors import ManifestError
from dare_bench.harness.manifest_problems import problem_of
from dare_bench.harness.manifest_yaml import Document, KeyPath
from pydantic import BaseModel, ConfigDict, Field, ValidationError

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$"
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
TokenId = Annotated[int, Field(ge=0)]
Text = Annotated[str, Field(min_length=1)]
OneOrMore = str | list[str]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=False)


class DecoderFields(_Strict):
    """Fields of `DecoderConfig`; what is left out is that of `preset` or the model's default.

    `selector`, `scheduler`, `cache`, `editor` and `weighting` are a name, ``{name: value}`` for one with a main option, or
    ``{name: {option: value}}``.
    """

    preset: str | None = None
    selector: str | dict[str, Any] = "low_confidence"
    scheduler: str | dict[str, Any] = "quota"
    steps_per_block: Annotated[int, Field(ge=1)] | None = None
    gen_length: Annotated[int, Field(ge=1)] | None = None
    block_length: Annotated[int, Field(ge=1)] | None = None
    cache: str | dict[str, Any] = "auto"
    editor: str | dict[str, Any] = "none"
    weighting: str | dict[str, Any] = "none"
    temperature: Annotated[float, Field(ge=0)] = 0.0
    cfg_scale: Annotated[float, Field(ge=0)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=1)] | None = None
    confidence: Literal["plain", "filtered"] = "plain"
    eos_rule: Literal["plain", "never", "last"] = "plain"
    early_stop: bool | Literal["block", "fill", "now"] = True
    compat: list[str] | dict[str, Any] = Field(default_factory=dict)


class ModelItem(_Strict):
    """A model: a registered name, or a checkpoint of a known family.

    Attributes:
        name: registered name, or the label of the given checkpoint.
        family: needed with `path` or `source` when `name` is not registered.
        path: local folder with config.json and safetensors.
        source: hub id.
        revision: hub commit; null = the registered one.
        dtype: of the weights when decoding; null = float32 on CPU, bfloat16 on a GPU.
        decoder: default decoder of this model.

    The other fields are facts that differ from those of the family or of config.json, see `facts.Overrides`.
    """

    name: Name
    family: str | None = None
    path: str | None = None
    source: str | None = None
    revision: str | None = None
    dtype: Literal["float32", "bfloat16"] | None = None
    mask_token_id: TokenId | None = None
    eos_token_id: TokenId | None = None
    pad_token_id: TokenId | None = None
    block_length: Annotated[int, Field(ge=1)] | None = None
    stop_tokens: Annotated[list[Text], Field(min_length=1)] | None = None
    reply_end: Text | None = None
    lora_targets: Text | None = None
    chat_template: Text | None = None
    chat_options: dict[str, Any] | None = None
    decoder: DecoderFields | None = None


class LoraItem(_Strict):
    """Adapter settings, see `LoraConfig`."""

    r: Annotated[int, Field(ge=1)] = 32
    alpha: Annotated[float, Field(gt=0)] = 64.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    experts: bool = False
    quantize: Literal["nf4", "int8"] | None = None


class AlgorithmItem(BaseModel):
    """An algorithm with overrides; further keys are fields of TrainConfig or of the algorithm's own config.

    Attributes:
        decoder: of its rollouts, instead of the one of the training section.
    """

    model_config = ConfigDict(extra="allow", strict=True, populate_by_name=False)
    name: Name
    label: Name | None = Field(default=None, alias="as")
    preset: str | None = None
    peft: Literal["lora"] | LoraItem | None = None
    decoder: DecoderItem | None = None


class BenchmarkItem(_Strict):
    """A benchmark with its protocol, split and number of rows."""

    name: Name
    protocol: str | None = None
    split: str | None = None
    limit: Annotated[int, Field(ge=1)] | None = None


class DecoderItem(DecoderFields):
    """A named decoder, and its batch size, which does not change results."""

    name: Name
    batch_size: Annotated[int, Field(ge=1)] | None = None


class PhaseItem(_Strict):
    """A stretch of a curriculum: its end as a share of the run, and the weights of the data sources in it."""

    until: Annotated[float, Field(gt=0, le=1)]
    mix: Annotated[dict[str, Annotated[float, Field(ge=0)]], Field(min_length=1)]


class EngineItem(_Strict):
    """A server that samples the rollouts, see `dare.training.engine`.

    Attributes:
        shared_folder: the runs folder, as the server sees it; null = at the same path.
    """

    kind: Text
    url: Text
    concurrency: Annotated[int, Field(ge=1)] = 64
    timeout_s: Annotated[float, Field(gt=0)] = 600.0
    shared_folder: Text | None = None


class TrainItem(BaseModel):
    """Training data and settings of every algorithm but `base`; further keys are fields of TrainConfig.

    Attributes:
        data: benchmark -> split, or list of splits.
        phases: curriculum over the sources; null = all examples shuffled. A source is a split, or ``benchmark/split``
            where two benchmarks have a split of that name.
        rewards: what rollouts are paid, name -> weight, or a mapping of `weight` and options; null = the score of each
            benchmark's protocol.
        decoder: of rollouts.
        peft: adapters for all algorithms.
        engine: a server that samples the rollouts; null = each training process samples its own.
    """

    model_config = ConfigDict(extra="allow", strict=True)
    data: Annotated[dict[str, str | Annotated[list[str], Field(min_length=1)]], Field(min_length=1)]
    phases: list[PhaseItem] = Field(default_factory=list)
    rewards: Annotated[dict[str, Any], Field(min_length=1)] | None = None
    decoder: DecoderItem | None = None
    peft: Literal["lora"] | LoraItem | None = None
    engine: EngineItem | None = None


class ExcludeItem(_Strict):
    """Cells to leave out: those that match every given key. `algorithm` means the label (`as`)."""

    model: OneOrMore | None = None
    algorithm: OneOrMore | None = None
    benchmark: OneOrMore | None = None
    decoder: OneOrMore | None = None
    seed: int | list[int] | None = None


class Manifest(_Strict):
    """A suite."""

    suite: Name
    description: str = ""
    models: Annotated[list[ModelItem], Field(min_length=1)]
    algorithms: Annotated[list[AlgorithmItem], Field(min_length=1)]
    benchmarks: Annotated[list[BenchmarkItem], Field(min_length=1)]
    decoders: Annotated[list[DecoderItem], Field(min_length=1)]
    seeds: Annotated[list[Seed], Field(min_length=1)]
    train: TrainItem | None = None
    exclude: list[ExcludeItem] = Field(default_factory=list)


_LISTS: dict[str, type[BaseModel]] = {
    "models": ModelItem,
    "algorithms": AlgorithmItem,
    "benchmarks": BenchmarkItem,
    "decoders": DecoderItem,
    "exclude": ExcludeItem,
}
_NAMED = ("models", "algorithms", "benchmarks", "decoders")
_DEFAULTS: dict[str, Any] = {"algorithms": ["base"], "decoders": ["default"], "seeds": [0]}


def load_manifest(path: Path, name: str, sets: tuple[str, ...] = ()) -> tuple[Document, Manifest]:
    """Read a manifest, apply ``--set`` and check its shape.

    Args:
        path: the file.
        name: what the user called it, for messages.
        sets: ``KEY=VALUE`` options, in order.

    Returns:
        The document (positions) and the checked manifest.

    Raises:
        ManifestError: with all problems.
    """
    document = manifest_yaml.load(manifest_yaml.read_text(path, name), name)
    for option in sets:
        manifest_yaml.apply_set(document, option)
    return document, check_shape(document)


def check_shape(document: Document) -> Manifest:
    """Validate a document against the models.

    Raises:
        ManifestError: with all problems.
    """
    data, plain = dict(document.data), set()
    for key, default in _DEFAULTS.items():
        data.setdefault(key, default)
    for key in _NAMED:
        if isinstance(data.get(key), list):
            items = []
            for index, item in enumerate(data[key]):
                if isinstance(item, str):
                    plain.add((key, index))
                items.append({"name": item} if isinstance(item, str) else item)
            data[key] = items
    data["train"] = _of_rollouts(data.get("train"))
    if isinstance(data["algorithms"], list):
        data["algorithms"] = [_of_rollouts(item) for item in data["algorithms"]]
    try:
        manifest = Manifest.model_validate(data)
    except ValidationError as error:
        problems = [problem_of(document, item, model_at, plain) for item in error.errors()]
        unique = {(problem.where, problem.key): problem for problem in reversed(problems)}
        raise ManifestError(reversed(unique.values())) from error
    return manifest


def _of_rollouts(holder: Any) -> Any:
    """A mapping whose `decoder` has a name, as those of the suite have."""
    if not isinstance(holder, dict) or not isinstance(holder.get("decoder"), str | dict):
        return holder
    decoder = holder["decoder"]
    return {**holder, "decoder": {"name": decoder} if isinstance(decoder, str) else {"name": "rollout", **decoder}}


def model_at(path: KeyPath) -> type[BaseModel] | None:
    """The model of the mapping at a key path."""
    if not path:
        return Manifest
    if len(path) == 2 and path[0] in _LISTS:
        return _LISTS[str(path[0])]
    nested: dict[KeyPath, type[BaseModel]] = {
        ("train",): TrainItem,
        ("train", "decoder"): DecoderItem,
        ("train", "peft"): LoraItem,
        ("train", "engine"): EngineItem,
    }
    if len(path) == 3 and path[-1] == "decoder":
        return DecoderFields if path[0] == "models" else DecoderItem
    if len(path) == 3 and path[-1] == "peft":
        return LoraItem
    if len(path) == 3 and path[:2] == ("train", "phases"):
        return PhaseItem
    return nested.get(path)
