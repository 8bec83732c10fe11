"""Answers under grammars with SmolLM2: they obey, and are the same bits whatever else happens in the engine."""

import asyncio
import json

import msgspec
import openai
import pytest
from real_models import real_model

pytest.importorskip(
    "caudal._native", reason="the native module is not built: runs after `make native` or an install, as in CI"
)

from caudal.checkpoint import open_checkpoint
from caudal.config import EngineConfig
from caudal.constrain.output_rule import OutputRule, grammar_of
from caudal.engine.load import load_engine
from caudal.messages import AddRequest
from caudal.sampling_params import SamplingParams
from caudal.server.loaded_model import vocabulary_of
from caudal.tokenizer.from_gguf import load_gguf_tokenizer

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["tall", "old", "kind"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
RULES = {
    "person": OutputRule(kind="json_schema", value=PERSON),
    "compact": OutputRule(kind="json_schema", value=PERSON, any_whitespace=False),
    "regex": OutputRule(kind="regex", value=r"(the river [a-z]+, ){3}end"),
    "choice": OutputRule(kind="choice", value=["the Amazon river", "the Nile river", "another"]),
    "gbnf": OutputRule(kind="grammar", value='root ::= ("one " | "two ") ("river" | "rivers") (" one " | "") [0-9]{4}'),
    "object": OutputRule(kind="json_object"),
    "free": None,
}
GREEDY = SamplingParams(temperature=0.0, max_tokens=60, logprobs=2)
SAMPLED = SamplingParams(temperature=1.2, top_p=0.95, seed=5, max_tokens=60, logprobs=2)
PENALISED = msgspec.structs.replace(SAMPLED, repetition_penalty=1.2, frequency_penalty=0.3, min_tokens=20)


@pytest.fixture(scope="module")
def tokenizer():
    path = real_model("smollm2")
    with open_checkpoint(path) as checkpoint:
        return load_gguf_tokenizer(checkpoint.metadata, path=path)


@pytest.fixture(scope="module")
def make_engine(tokenizer):
    vocabulary = vocabulary_of(tokenizer)

    def make(**options):
        settings = {"enable_prefix_caching": False, "num_threads": 2, "max_model_len": 256, **options}
        engine = load_engine(EngineConfig(model_path=str(real_model("smollm2")), **settings))
        engine.know_vocabulary(vocabulary)
        return engine

    return make


@pytest.fixture(scope="module")
def requests(tokenizer):
    prompt = tokenizer.encode_chat([{"role": "user", "content": "Tell me of a person, a river and a number as JSON."}])
    return [
        AddRequest(
            request_id=f"{name} {kind}",
            prompt_token_ids=prompt[index % 3 :],
            params=params,
            eos_token_ids=tokenizer.eos_token_ids,
            grammar="" if rule is None else grammar_of(rule),
        )
        for index, (name, rule) in enumerate(RULES.items())
        for kind, params in (("greedy", GREEDY), ("sampled", SAMPLED), ("penalised", PENALISED))
    ]


def answers(engine, batch):
    """Return each request's tokens, exact log-probabilities and reason to end."""
    found = {request.request_id: [[], None] for request in batch}
    for request in batch:
        engine.add_request(request)
    while engine.has_work:
        for update in engine.step():
            assert update.error is None
            said = found[update.request_id]
            said[0] += [(e.token_id, e.logprob, e.rank, *e.top_ids, *e.top_logprobs) for e in update.logprobs or ()]
            said[1] = update.finish_reason
    return found


@pytest.fixture(scope="module")
def alone(make_engine, requests):
    """Every request by itself, without speculation: the truth that every other way must repeat."""
    lone, found = make_engine(num_speculative_tokens=0), {}
    for request in requests:
        found |= answers(lone, [request])
    return found


def test_answers_obey(alone, tokenizer):
    for name, (entries, reason) in alone.items():
        text = tokenizer.decode([entry[0] for entry in entries])
        if reason == "stop" and name.split()[0] in ("person", "compact"):
            person = json.loads(text)
            assert set(person) == {"name", "age", "tags"}
            assert 0 <= person["age"] <= 120
            assert set(person["tags"]) <= {"tall", "old", "kind"}
        if name.startswith("choice"):
            assert text in RULES["choice"].value
        if name.startswith("compact"):
            assert text.startswith('{"name":"')
    reasons = [reason for name, (_, reason) in alone.items() if not name.startswith(("free", "object"))]
    assert reasons.count("stop") >= len(reasons) - 3


def test_batched_is_alone(alone, make_engine, requests):
    assert answers(make_engine(), requests) == alone
    small = make_engine(max_num_batched_tokens=40, max_num_seqs=5, num_threads=3)
    assert answers(small, requests[::-1]) == alone


@pytest.mark.parametrize("together", [1, 3])
def test_speculation_changes_nothing(alone, make_engine, requests, together):
    guessing, found = make_engine(num_speculative_tokens=7), {}
    for first in range(0, len(requests), together):
        found |= answers(guessing, requests[first : first + together])
    assert found == alone
    stats = guessing.stats()
    assert stats.num_accepted_tokens > 40
    assert stats.num_draft_tokens > stats.num_accepted_tokens


def test_cached_and_preempted_is_alone(alone, make_engine, requests):
    tight = make_engine(enable_prefix_caching=True, block_size=16, kv_cache_bytes=14 * 16 * 23040)
    assert answers(tight, requests) == alone
    assert tight.stats().num_preemptions > 0


def test_the_official_client_gets_json_that_obeys(smollm2_server):
    with openai.OpenAI(
        base_url=f"{smollm2_server.url}/v1", api_key="any", _strict_response_validation=True, max_retries=0, timeout=60
    ) as client:
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
        fields = {
            "model": "smollm2",
            "messages": [{"role": "user", "content": "Describe a person as JSON."}],
            "temperature": 0,
            "max_tokens": 200,
            "response_format": form,
        }
        whole = client.chat.completions.create(**fields).choices[0]
        assert whole.finish_reason == "stop"
        assert set(json.loads(whole.message.content)) == set(PERSON["properties"])
        chunks = client.chat.completions.create(**fields, stream=True)
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.message.content
        with pytest.raises(openai.BadRequestError, match="response_format"):
            client.chat.completions.create(**{**fields, "response_format": {**form, "json_schema": {"name": "x"}}})


def test_many_schemas_at_once(smollm2_server):
    """32 requests, each with a schema of its own; some leave in the middle."""

    async def together():
        async with openai.AsyncOpenAI(base_url=f"{smollm2_server.url}/v1", api_key="any", timeout=120) as client:

            async def one(index):
                key = f"key {index}"
                schema = {
                    "type": "object",
                    "properties": {key: {"type": "integer", "minimum": index, "maximum": index + 3}},
                    "required": [key],
                    "additionalProperties": False,
                }
                stream = await client.completions.create(
                    model="smollm2",
                    prompt="JSON:",
                    stream=True,
                    max_tokens=40,
                    temperature=1.0,
                    seed=index,
                    extra_body={"structured_outputs": {"json": schema, "disable_any_whitespace": True}},
                )
                text = ""
                async for chunk in stream:
                    text += chunk.choices[0].text
                    if index % 8 == 7:
                        await stream.close()
                        return
                assert index <= json.loads(text)[key] <= index + 3

            await asyncio.gather(*map(one, range(32)))

    asyncio.run(together())
