"""Which model a name means, and which models there are."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caudal.errors import ConfigError
from caudal.server.model_catalog import FRESH_S, ModelCatalog, find_model, read_aliases
from caudal.server.settings import ServedModel


def served(*names):
    return [ServedModel(name=name, path=name) for name in names]


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("qwen", "qwen"),
        ("qwen", "qwen:latest"),
        ("qwen", "QWEN:Latest"),
        ("qwen", "qwen.gguf"),
        ("org/model:Q4_K_M", "org/model:q4_k_m"),
        ("org/model:Q4_K_M", "model:Q4_K_M"),
        ("qwen2.5-coder-1.5b-instruct-q4_k_m", "qwen2.5-coder-1.5b-instruct:q4_k_m"),
        ("sub/SmolLM2-135M.Q4_1", "smollm2-135m:q4_1"),
        ("sub/SmolLM2-135M.Q4_1", "SmolLM2-135M.Q4_1"),
        ("org/repo/file-Q8_0.gguf", "file-Q8_0"),
        ("org/repo/file-Q8_0.gguf", "file:Q8_0"),
        ("m-IQ4_XS", "m:iq4_xs"),
        ("m-f16", "m:F16"),
    ],
)
def test_ways_to_write_a_name(name, asked):
    assert find_model(served("other", name), asked).name == name


@pytest.mark.parametrize("asked", ["qwe", "qwen:7b", "latest", ":latest", "q4_k_m", "sub", "", "/", "x/qwen"])
def test_what_is_no_name(asked):
    assert find_model(served("qwen", "sub/m-q4_k_m"), asked) is None


def test_the_most_exact_name_counts_and_then_the_first():
    models = served("a/m-q8_0", "b/m-q8_0", "m-q8_0", "M-Q8_0", "m:q8_0")
    assert find_model(models, "m-q8_0").name == "m-q8_0"
    assert find_model(models, "M-Q8_0").name == "M-Q8_0"
    assert find_model(models, "m:q8_0").name == "m:q8_0"
    assert find_model(models[:2], "m-q8_0").name == "a/m-q8_0"
    assert find_model(models[:2], "b/m-q8_0").name == "b/m-q8_0"


@given(st.lists(st.text("abQ4_K-.:/", min_size=1, max_size=12), min_size=1, max_size=6, unique=True))
def test_every_listed_name_means_its_own_model(names):
    models = served(*names)
    for name in names:
        assert find_model(models, name).name == name


def test_aliases_are_names_of_their_models():
    catalog = ModelCatalog(lambda: served("a", "b"), {"gpt-4": "b", "small": "a:latest"})
    catalog.look_now()
    assert catalog.find("gpt-4").name == "b"
    assert catalog.find("GPT-4:latest").name == "b"
    assert catalog.find("small").aliases == ("small",)
    assert catalog.find(None).name == catalog.find("").name == "a"
    assert catalog.find("c") is None


def test_an_alias_for_nobody_is_told_at_the_start():
    catalog = ModelCatalog(lambda: served("a"), {"x": "b"})
    with pytest.raises(ConfigError, match="--alias x=b: 'b' is not served; this server has 'a'"):
        catalog.look_now()


@pytest.mark.parametrize("pairs", [["x"], ["=b"], ["x="], [" = "], ["x=a", "x=b"]])
def test_aliases_that_say_nothing(pairs):
    with pytest.raises(ConfigError, match="--alias"):
        read_aliases(pairs)


def test_aliases_may_have_an_equals_sign_in_the_model():
    assert read_aliases(["x=a=b", " y = c "]) == {"x": "a=b", "y": "c"}


async def test_it_looks_again_after_a_second_and_once_for_all_who_ask():
    now, models, looks = [0.0], ["a"], []

    def look():
        looks.append(1)
        return served(*models)

    catalog = ModelCatalog(look, clock=lambda: now[0])
    catalog.look_now()
    models.append("b")
    await catalog.refresh()
    assert [model.name for model in catalog.models()] == ["a"]
    now[0] += FRESH_S
    await asyncio.gather(*(catalog.refresh() for _ in range(5)))
    assert [model.name for model in catalog.models()] == ["a", "b"]
    assert len(looks) == 2


def test_no_model_at_all():
    catalog = ModelCatalog(list)
    catalog.look_now()
    assert catalog.find(None) is None
