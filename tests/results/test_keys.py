"""Canonical JSON, fingerprints and comparability keys (rules of fair comparison, section 8)."""

from __future__ import annotations

import copy
import hashlib
import math
from typing import Any

import pytest
from dare_bench.results import keys
from hypothesis import given
from hypothesis import strategies as st

FIELDS: dict[str, Any] = keys.hard_fields(
    dataset={"id": "mini_gsm", "revision": "a" * 64, "split": "test", "ids_sha256": "b" * 64},
    prompt={"rendered_sha256": "c" * 64, "template_sha256": "d" * 64, "system": None, "text": "Solve it."},
    few_shot={"count": 2, "ids": ["x", "y"], "order": "fixed"},
    extraction={"scorer": "number", "version": 1},
    decode_budget={"max_new_tokens": 256, "nfe": "unbounded"},
    sampling={"temperature": 0.0, "top_p": 1.0, "repeats": 1, "seed_policy": "per-sample", "stop": ["<eos>"]},
    metric={"name": "strict", "k": 1},
)

LEAVES = [(group, name) for group, fields in FIELDS.items() for name in fields]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(("group", "name"), LEAVES, ids=[".".join(leaf) for leaf in LEAVES])
def test_each_hard_field_changes_the_key(group: str, name: str) -> None:
    other = copy.deepcopy(FIELDS)
    other[group][name] = "another value"
    assert keys.hard_key(other) != keys.hard_key(FIELDS)
    assert keys.differing_fields(FIELDS, other) == [(f"{group}.{name}", FIELDS[group][name], "another value")]


def test_order_of_keys_does_not_change_the_key() -> None:
    reordered = {group: dict(reversed(fields.items())) for group, fields in reversed(FIELDS.items())}
    assert list(reordered) != list(FIELDS)
    assert keys.hard_key(reordered) == keys.hard_key(FIELDS)


def test_order_of_a_list_changes_the_key() -> None:
    other = copy.deepcopy(FIELDS)
    other["few_shot"]["ids"].reverse()
    assert keys.hard_key(other) != keys.hard_key(FIELDS)


@pytest.mark.parametrize("text", ["Solve it. ", "\ufeffSolve it.", "Solve it.\n", "solve it."])
def test_bom_and_spaces_in_a_prompt_count(text: str) -> None:
    other = copy.deepcopy(FIELDS)
    other["prompt"]["text"] = text
    assert keys.hard_key(other) != keys.hard_key(FIELDS)


def test_device_is_in_the_numerics_key_only() -> None:
    cpu, gpu = {"device": "cpu", "dtype": "float32"}, {"device": "H200", "dtype": "float32"}
    assert keys.numerics_key(cpu) != keys.numerics_key(gpu)
    assert "device" not in keys.canonical_json(FIELDS)
    assert tuple(FIELDS) == keys.HARD_FIELDS


def test_form_of_the_keys() -> None:
    expected = hashlib.sha256(keys.canonical_json(FIELDS).encode()).hexdigest()
    assert keys.hard_key(FIELDS) == "ck1:" + expected[:16]
    assert keys.numerics_key(FIELDS) == "nk1:" + expected[:16]
    assert keys.contract_key(FIELDS) == "tk1:" + expected[:16]
    assert keys.fingerprint(FIELDS) == expected
    with pytest.raises(ValueError, match="no fields"):
        keys.hard_key({})


def test_canonical_text_is_pinned() -> None:
    value = {"b": [1, 2.5, True, None], "a": {"é": "ü\n"}, "n": 1.0, "z": -0.0}
    assert keys.canonical_json(value) == '{"a":{"é":"ü\\n"},"b":[1,2.5,true,null],"n":1,"z":0}'
    # A changed serialisation would turn every stored fingerprint into a miss.
    assert keys.fingerprint({"a": 1}) == "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"


def test_true_is_not_one_and_a_tuple_is_a_list() -> None:
    assert keys.fingerprint({"a": True}) != keys.fingerprint({"a": 1})
    assert keys.fingerprint({"a": (1, 2)}) == keys.fingerprint({"a": [1, 2]})


@given(JSON, JSON)
def test_equal_text_means_equal_value(a: Any, b: Any) -> None:
    assert keys.canonical_json(a) == keys.canonical_json(copy.deepcopy(a))
    if keys.canonical_json(a) == keys.canonical_json(b):
        assert a == b


@pytest.mark.parametrize(
    ("value", "error", "said"),
    [
        ({"a": {"b": {1, 2}}}, TypeError, r"\$\.a\.b has type set"),
        ({"a": [0, math.nan]}, ValueError, r"\$\.a\[1\] is nan"),
        ({"a": math.inf}, ValueError, r"\$\.a is inf"),
        ({1: "a"}, TypeError, "key 1 of type int"),
        ({"a": b"x"}, TypeError, r"\$\.a has type bytes"),
    ],
)
def test_what_has_no_canonical_text_is_refused(value: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        keys.canonical_json(value)


def test_differing_fields_names_absent_ones_and_tells_none_from_absent() -> None:
    found = keys.differing_fields({"a": 1, "b": {"x": None, "y": 1.0}}, {"b": {"y": 1}, "c": 3})
    assert found == [("a", 1, keys.ABSENT), ("b.x", None, keys.ABSENT), ("c", keys.ABSENT, 3)]
    assert keys.differing_fields(FIELDS, copy.deepcopy(FIELDS)) == []


def test_json_for_columns_refuses_nan_and_takes_numpy_numbers() -> None:
    import numpy as np

    assert keys.to_json({"b": np.float32(0.5), "a": np.int64(3)}) == '{"b":0.5,"a":3}'
    with pytest.raises(ValueError, match="JSON compliant"):
        keys.to_json({"loss": math.nan})
    with pytest.raises(TypeError, match="set cannot be stored"):
        keys.to_json({"a": {1}})
