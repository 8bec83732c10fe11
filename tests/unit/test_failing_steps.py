"""Exceptions inside a step: the request at fault ends with an error, and all others get what they get without it."""

import pytest
from factory import tiny_checkpoint

from caudal.config import EngineConfig
from caudal.engine.load import load_engine
from caudal.engine.sampling_batch import RowSampling
from caudal.messages import AddRequest
from caudal.sampling_params import SamplingParams

POISON = 77
NAMES = [f"request {n}" for n in range(5)]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    tiny_checkpoint(path)
    return str(path)


@pytest.fixture
def engine(path):
    config = EngineConfig(model_path=path, num_threads=1, max_model_len=96, max_num_seqs=8, max_num_batched_tokens=24)
    return load_engine(config)


def request(index):
    """Five kinds: long and short prompts, with and without log-probabilities, and one whose tokens have a bias."""
    params = SamplingParams(
        temperature=1.0,
        seed=POISON + index,
        max_tokens=12,
        ignore_eos=True,
        logprobs=(None, 0, 3, None, 5)[index],
        prompt_logprobs=2 if index == 1 else None,
        logit_bias={5: 1.0 + index} if index in (0, 3) else {},
    )
    prompt = [30 + index] * (3, 40, 7, 25, 1)[index]
    return AddRequest(request_id=NAMES[index], prompt_token_ids=prompt, params=params)


def run(engine):
    """Return tokens, log-probabilities, finish reason and error of each request."""
    for index in range(len(NAMES)):
        engine.add_request(request(index))
    found = {name: [[], [], None, None, None] for name in NAMES}
    while engine.has_work:
        for update in engine.step():
            said = found[update.request_id]
            assert said[3] is None, "an update after the last"
            said[0] += update.token_ids
            said[1] += update.logprobs or []
            said[2] = update.prompt_logprobs or said[2]
            said[3:] = update.finish_reason, update.error
    assert engine.stats().kv_blocks_used == 0
    engine._scheduler.check_integrity()
    return found


def spoil_sampling(engine, monkeypatch, bad, after):
    """The sampler fails whenever it is given a row of the bad request, behind its first tokens."""
    real = engine._runner.sample

    def sample(logits, sampling):
        if any(
            seed == POISON + bad and position - len(request(bad).prompt_token_ids) >= after
            for seed, position in zip(sampling.seeds.tolist(), sampling.positions.tolist(), strict=True)
        ):
            raise RuntimeError
        return real(logits, sampling)

    monkeypatch.setattr(engine._runner, "sample", sample)


def spoil_forward(engine, monkeypatch, bad, _):
    """The forward pass fails whenever it is given a token of the bad request's prompt."""
    real = engine._runner.forward

    def forward(batch):
        if 30 + bad in batch.token_ids:
            raise ValueError
        return real(batch)

    monkeypatch.setattr(engine._runner, "forward", forward)


def spoil_bias(_, monkeypatch, bad, after):
    """The arrays of a step cannot be made for the bad request."""
    real = RowSampling.bias

    def bias(self, num_generated):
        if self.seed == POISON + bad and num_generated >= after:
            raise ZeroDivisionError
        return real(self, num_generated)

    monkeypatch.setattr(RowSampling, "bias", bias)


@pytest.mark.parametrize(
    ("spoil", "bad", "after"),
    [
        *((spoil_sampling, bad, after) for bad in range(len(NAMES)) for after in (0, 4)),
        *((spoil_forward, bad, 0) for bad in range(len(NAMES))),
        *((spoil_bias, bad, after) for bad in (0, 3) for after in (0, 4)),
    ],
)
def test_only_the_request_at_fault_ends(engine, monkeypatch, spoil, bad, after):
    lone = run(engine)
    assert all(said[3:] == ["length", None] for said in lone.values())
    spoil(engine, monkeypatch, bad, after)
    found = run(engine)
    token_ids, _, _, reason, error = found.pop(NAMES[bad])
    assert (reason, token_ids) == ("error", lone[NAMES[bad]][0][:after])
    assert error.startswith("the engine failed while it computed this request (")
    assert found == {name: said for name, said in lone.items() if name != NAMES[bad]}
    monkeypatch.undo()
    assert run(engine) == lone


def test_a_step_that_fails_once_spoils_nothing(engine, monkeypatch):
    lone = run(engine)
    real, left = engine._runner.sample, [2]

    def sample(logits, sampling):
        left[0] -= 1
        if not left[0]:
            raise OSError
        return real(logits, sampling)

    monkeypatch.setattr(engine._runner, "sample", sample)
    assert run(engine) == lone


def test_where_everything_fails_everything_ends(engine, monkeypatch):
    def forward(_):
        raise MemoryError

    monkeypatch.setattr(engine._runner, "forward", forward)
    found = run(engine)
    assert {said[3] for said in found.values()} == {"error"}
    assert all("MemoryError" in said[4] for said in found.values())


def read(engine, texts):
    """Return the vector, or the error, of each text."""
    for index, text in enumerate(texts):
        engine.add_request(AddRequest(request_id=str(index), prompt_token_ids=text, params=SamplingParams()))
    found = {}
    while engine.has_work:
        for update in engine.step():
            assert update.request_id not in found
            found[update.request_id] = update.error or update.embedding
    return [found[str(index)] for index in range(len(texts))]


def test_a_text_that_cannot_be_read_spoils_no_other(path, monkeypatch):
    engine = load_engine(EngineConfig(model_path=path, num_threads=1, pooling="mean"))
    texts = [[30 + n] * (3, 40, 7, 25, 1)[n] for n in range(5)]
    lone = read(engine, texts)
    spoil_forward(engine, monkeypatch, 3, 0)
    found = read(engine, texts)
    assert found.pop(3) == "the engine failed while it computed this request (ValueError)"
    assert found == lone[:3] + lone[4:]
    monkeypatch.undo()
    assert read(engine, texts) == lone
