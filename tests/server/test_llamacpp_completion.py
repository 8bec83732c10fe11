from __future__ import annotations

import asyncio
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peer_app import HONOURS_RULES, MID, PRE, REP, SEP, SUF, BaseTokenizer, TemplateTokenizer, peer_app, prompt_text

from caudal.errors import RequestError
from caudal.sampling_params import SamplingParams
from caudal.server.llamacpp.prompts import prompts_of, token_ids_of
from caudal.server.llamacpp.protocol import NativeRequest
from caudal.server.llamacpp.sampling import sampling_params


@pytest.fixture
async def peer():
    async with peer_app() as client:
        yield client


async def complete(http, prompt, path="/completion", **fields):
    return await http.post(path, json={"prompt": prompt, **fields})


async def result(http, prompt, **fields):
    response = await complete(http, prompt, **fields)
    assert response.status_code == 200, response.text
    return response.json()


def events(response):
    assert response.headers["content-type"].startswith("text/event-stream"), response.text
    blocks = [block for block in response.text.split("\n\n") if block and not block.startswith(":")]
    assert all(block.startswith("data: ") for block in blocks)
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def error_of(response, status=400, kind="invalid_request_error"):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert (error["code"], error["type"]) == (status, kind)
    return error


async def test_a_result_has_every_field(peer):
    answer = await result(peer, "slow-say:añ\n🎉", seed=3)
    assert answer["content"] == "añ\n🎉"
    assert (answer["stop"], answer["stop_type"], answer["stopping_word"]) == (True, "eos", "")
    num_tokens = len("añ\n🎉".encode()) + 1
    assert (answer["tokens_predicted"], answer["tokens_evaluated"]) == (num_tokens, len(peer.engine.seen[-1]))
    assert answer["tokens_cached"] == num_tokens + len(peer.engine.seen[-1])
    assert (answer["truncated"], answer["has_new_line"], answer["tokens"]) == (False, True, [])
    assert answer["prompt"] == "<|256|>slow-say:añ\n🎉"
    assert answer["model"] == "org/Scripted:Q4"
    settings = answer["generation_settings"]
    assert (settings["seed"], settings["temperature"], settings["top_k"]) == (3, 0.8, 40)
    assert (settings["top_p"], settings["min_p"], settings["n_predict"]) == (0.95, 0.05, -1)
    timings = answer["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == len(peer.engine.seen[-1])
    assert timings["predicted_n"] == num_tokens
    assert timings["prompt_ms"] > 0
    rate = 1e3 * (num_tokens - 1) / timings["predicted_ms"]  # the first token comes with the end of the prompt
    assert timings["predicted_per_second"] == pytest.approx(rate)


async def test_ends_that_are_ignored_are_shown_as_banned(peer):
    body = {"prompt": "say:a", "n_predict": 3, "ignore_eos": True}
    answer = (await peer.post("/completion", json=body)).json()
    assert answer["generation_settings"]["logit_bias"] == [{"token": 257, "bias": None}]
    one = (await peer.post("/completion", json={**body, "n_predict": 1})).json()["timings"]
    assert (one["predicted_n"], one["predicted_per_second"]) == (1, 0.0)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n_predict": 3},
        {"max_tokens": 3},
        {"stop": ["🎉"]},
        {"stop": ["", "b"]},
        {"n_probs": 2, "return_tokens": True},
        {"n_predict": 0},
        {"n_cmpl": 2, "seed": 1},
        {"ignore_eos": True, "n_predict": 20},
    ],
)
async def test_stream_equals_whole(peer, fields):
    answers = await result(peer, "say:añb 🎉!", **fields)
    answers = answers if isinstance(answers, list) else [answers]
    told = events(await complete(peer, "say:añb 🎉!", stream=True, timings_per_token=True, **fields))
    for answer in answers:
        *parts, last = [event for event in told if event["index"] == answer["index"]]
        assert "".join(part["content"] for part in parts) == answer["content"]
        assert all(part["stop"] is False and part["tokens"] and part["timings"] for part in parts)
        for name in ("stop", "stop_type", "stopping_word", "tokens_predicted", "tokens_evaluated", "prompt"):
            assert last[name] == answer[name]
        if fields.get("return_tokens"):
            told_tokens = [token for part in parts for token in part["tokens"]]
            assert told_tokens in (answer["tokens"], answer["tokens"][:-1])
            probabilities = [entry for part in parts for entry in part["completion_probabilities"]]
            assert probabilities == answer["completion_probabilities"][: len(probabilities)]


async def test_why_an_answer_ended(peer):
    word = await result(peer, "say:hello", stop=["l", "zz"])
    assert (word["stop_type"], word["stopping_word"], word["content"]) == ("word", "l", "he")
    limit = await result(peer, "say:hello", n_predict=2)
    assert (limit["stop_type"], limit["content"], limit["generation_settings"]["n_predict"]) == ("limit", "he", 2)


async def test_warming_up_generates_nothing_that_is_seen(peer):
    answer = await result(peer, "say:hello", n_predict=0, return_tokens=True, n_probs=1)
    assert (answer["content"], answer["tokens"], answer["tokens_predicted"]) == ("", [], 0)
    assert (answer["stop_type"], answer["timings"]["predicted_n"]) == ("limit", 0)
    assert "completion_probabilities" not in answer


async def test_probabilities(peer):
    first = (await result(peer, "say:ñ", n_probs=2))["completion_probabilities"][0]
    assert (first["id"], first["bytes"], first["logprob"]) == (0xC3, [0xC3], -0.5)
    assert [entry["id"] for entry in first["top_logprobs"]] == [0xC3, 0xC4]


async def test_prompts_of_every_form(peer):
    ids = [256, *b"say:x"]
    assert (await result(peer, ids))["content"] == "x"
    batch = await result(peer, [ids, "say:y", {"prompt_string": "say:z"}])
    assert [answer["content"] for answer in batch] == ["x", "y", "z"]
    assert [answer["index"] for answer in batch] == [0, 1, 2]
    assert (await result(peer, [256, "say:", 97, "b"]))["content"] == "ab"
    assert prompt_text(peer) == "<|256|>say:ab"
    assert (await result(peer, ["say:x"]))["content"] == "x"


@pytest.mark.parametrize(
    "prompt",
    [None, [], {}, 3, True, [True], [[]], [["x", {}]], {"prompt_string": 3}, [1, [2]], [99999], [-1], 1.5, [[1, 1.5]]],
)
async def test_prompts_of_no_form(peer, prompt):
    error_of(await complete(peer, prompt))


async def test_pictures_are_refused_by_name(peer):
    error = error_of(await complete(peer, {"prompt_string": "x", "multimodal_data": ["aGk="]}))
    assert "multimodal_data" in error["message"]


async def test_a_prompt_that_does_not_fit_says_both_lengths(peer):
    error = error_of(await complete(peer, "x" * 600), 400, "exceed_context_size_error")
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (601, 512)
    assert "exceeds the available context size" in error["message"]


async def test_response_fields(peer):
    answer = await result(
        peer, "say:x", n_predict=5, response_fields=["content", "generation_settings/n_predict", "no/such", "content/x"]
    )
    assert answer == {"content": "x", "generation_settings/n_predict": 5}


async def test_progress_comes_with_the_first_event(peer):
    first, *rest = events(await complete(peer, "say:abc", stream=True, return_progress=True))
    total = len(peer.engine.seen[-1])
    assert first["prompt_progress"]["processed"] == first["prompt_progress"]["total"] == total
    assert all("prompt_progress" not in event for event in rest)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dynatemp_range", 0.5),
        ("top_n_sigma", 1.0),
        ("xtc_probability", 0.5),
        ("dry_multiplier", 0.8),
        ("mirostat", 2),
        ("adaptive_target", 0.5),
        ("min_keep", 3),
        ("grammar", "root ::= ("),
        ("grammar_lazy", True),
        ("json_schema", {"type": "nonsense"}),
        ("lora", [{"id": 0, "scale": 1.0}]),
        ("logit_bias", {"x": 1, "y": "z"}),
        ("logit_bias", 3),
        ("logit_bias", [[1]]),
        ("logit_bias", [[99999, 1.0]]),
        ("logit_bias", [[97, True]]),
        ("samplers", ["top_k", "magic"]),
        ("n_cmpl", 0),
        ("n_probs", 1000),
        ("t_max_predict_ms", 1e13),
        ("temperature", "warm"),
    ],
)
async def test_what_cannot_be_honoured_is_named(peer, name, value):
    assert name in error_of(await complete(peer, "say:x", **{name: value}))["message"]


@pytest.mark.parametrize(
    ("field", "value"), [("json_schema", {"type": "integer"}), ("grammar", 'root ::= "x"'), ("json_schema", {})]
)
async def test_rules_are_honoured_or_refused(peer, field, value):
    seen = []
    add = peer.engine.add_request
    peer.engine.add_request = lambda request: (seen.append(request.grammar), add(request))[1]
    response = await complete(peer, "say:x", **{field: value})
    if HONOURS_RULES:
        assert response.status_code == 200
        assert seen[0]
        both = await complete(peer, "say:x", grammar='root ::= "x"', json_schema={})
        assert "exclude" in error_of(both)["message"]
    else:
        assert field in error_of(response)["message"]


async def test_post_sampling_probabilities_are_refused(peer):
    error = error_of(await complete(peer, "say:x", n_probs=1, post_sampling_probs=True))
    assert "post_sampling_probs" in error["message"]


NEUTRAL = {
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "top_n_sigma": -1,
    "xtc_probability": 0,
    "xtc_threshold": 0.1,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_sequence_breakers": ["\n"],
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "adaptive_target": -1,
    "min_keep": 0,
    "grammar": "",
    "json_schema": None,
    "lora": [],
    "repeat_last_n": 64,
    "cache_prompt": True,
    "id_slot": -1,
    "n_keep": 0,
    "typical_p": 1.0,
    "post_sampling_probs": False,
    "samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],
}


async def test_clients_that_send_every_neutral_value_are_served(peer):
    assert (await result(peer, "say:x", **NEUTRAL))["content"] == "x"


def params_of(**fields):
    return sampling_params(NativeRequest(**fields), TemplateTokenizer(), max_tokens=None)


def test_samplers_that_are_not_named_do_nothing():
    given = {"temperature": 0.2, "top_k": 5, "top_p": 0.5, "min_p": 0.3, "typical_p": 0.4, "repeat_penalty": 1.5}
    assert params_of(**given, samplers=["infill"]) == SamplingParams(temperature=1.0, min_p=0.0)
    assert params_of(**given, samplers="kt") == SamplingParams(temperature=0.2, top_k=5, min_p=0.0)
    named = params_of(**given, samplers=["penalties", "top_p", "min_p", "typical_p", "temp"])
    assert (named.top_k, named.top_p, named.min_p, named.typical_p) == (0, 0.5, 0.3, 0.4)
    assert (named.repetition_penalty, named.temperature) == (1.5, 0.2)


def test_values_outside_are_moved_inside():
    params = params_of(temperature=-3, top_k=-1, top_p=0, min_p=-2, typical_p=7, seed=2**32 - 1)
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.0, 0, 1e-9, 0.0)
    assert (params.typical_p, params.seed) == (1.0, None)
    assert params_of(seed=0).seed == 0


def test_logit_bias_in_every_form():
    assert params_of(logit_bias=[[97, 1.5], [98, False], ["cd", -0.5]]).logit_bias == {
        97: 1.5,
        98: -math.inf,
        99: -0.5,
        100: -0.5,
    }
    assert params_of(logit_bias={"97": 2, "z": 1}).logit_bias == {97: 2.0, ord("z"): 1.0}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def refused_parameter(work):
    """The parameter that a refusal names, None if there is none. Any other exception is a bug."""
    try:
        work()
    except RequestError as error:
        return error.parameter
    return None


@given(JSON)
def test_any_logit_bias_is_taken_or_refused(bias):
    assert refused_parameter(lambda: params_of(logit_bias=bias)) in (None, "logit_bias")


@given(JSON)
def test_any_prompt_is_taken_or_refused(prompt):
    def read():
        for each in prompts_of(prompt):
            assert all(isinstance(i, int) for i in token_ids_of(each, TemplateTokenizer()))

    assert refused_parameter(read) in (None, "prompt", "multimodal_data")


async def test_completions_is_openais_until_a_field_says_otherwise(peer):
    plain = (await complete(peer, "say:x", path="/completions", model="scripted")).json()
    assert plain["choices"][0]["text"] == "x"
    native = (await complete(peer, "say:x", path="/completions", n_predict=5)).json()
    assert (native["content"], native["stop"]) == ("x", True)
    always = (await complete(peer, "say:x", path="/v1/completions", n_predict=5)).json()
    assert always["choices"][0]["text"] == "x"
    assert set((await complete(peer, 3, path="/completions")).json()["error"]) == {"message", "type", "param", "code"}
    error_of(await complete(peer, "x" * 600, path="/completions", n_predict=5), 400, "exceed_context_size_error")


async def test_a_gap_is_filled_in(peer):
    body = {"input_prefix": "def f():\n", "prompt": "  say:", "input_suffix": "\nf()", "n_predict": 2, "n_indent": 2}
    response = await peer.post("/infill", json=body)
    assert prompt_text(peer) == f"<|256|><|{PRE}|>def f():\n  say:<|{SUF}|>\nf()<|{MID}|>"
    assert response.json()["tokens_predicted"] == 2


async def test_other_files_stand_before_the_gap(peer):
    extra = [{"filename": "a.py", "text": "A"}, {"text": "B"}]
    response = await peer.post("/infill", json={"input_prefix": "say:x", "input_suffix": "", "input_extra": extra})
    assert response.status_code == 200
    files = f"<|{REP}|>repository\n<|{SEP}|>a.py\nA<|{SEP}|>tmp\nB<|{SEP}|>file\n"
    assert prompt_text(peer) == f"<|256|>{files}<|{PRE}|>say:x<|{SUF}|><|{MID}|>"


@pytest.mark.parametrize("extra", [3, ["x"], [{"filename": "a"}], [{"text": 3}], [{"text": "a", "filename": 3}]])
async def test_files_of_no_form(peer, extra):
    assert "input_extra" in error_of(await peer.post("/infill", json={"input_extra": extra}))["message"]


async def test_a_model_without_tokens_for_gaps_says_so():
    async with peer_app(BaseTokenizer()) as http:
        error_of(await http.post("/infill", json={"input_prefix": "x"}), 501, "not_supported_error")


async def test_a_gap_that_does_not_fit_is_not_cut(peer):
    response = await peer.post("/infill", json={"input_prefix": "x" * 300, "input_suffix": "y" * 300})
    assert error_of(response, 400, "exceed_context_size_error")["n_prompt_tokens"] == 604


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the engine's thread has no event for it
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_time_limit_ends_the_answer(peer, stream):
    response = await complete(peer, "slow-loop:añ🎉", t_max_predict_ms=200, stream=stream, n_predict=400)
    answer = events(response)[-1] if stream else response.json()
    assert (answer["stop"], answer["stop_type"]) == (True, "limit")
    assert 1 < answer["tokens_predicted"] < 100
    await until(lambda: not peer.engine.running)


async def test_an_answer_in_time_is_not_touched(peer):
    answer = await result(peer, "say:hello", t_max_predict_ms=60_000)
    assert (answer["content"], answer["stop_type"]) == ("hello", "eos")


async def test_a_time_limit_gives_what_was_held_back(peer):
    """A stop string may begin with what has been said, and half a character may wait for its end."""
    answer = await result(peer, "slow-loop:ab", stop=["abababababababababababababababababababX"], t_max_predict_ms=150)
    assert answer["content"].startswith("ab")
    assert len(answer["content"]) == answer["tokens_predicted"]


async def test_an_error_in_the_stream_is_an_event(peer):
    streaming = asyncio.create_task(complete(peer, "slow-loop:x", stream=True))
    await until(lambda: peer.engine.num_generated > 1)
    await complete(peer, "crash")
    last = (await streaming).text.rstrip().rpartition("\n\n")[2]
    name, data = last.split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"]["type"] == "server_error"
