"""Grammars in the engine: how answers end, and what becomes of a grammar that fails, hangs, or is not wanted."""

import threading
import time
from itertools import pairwise

import msgspec
import pytest
from factory import tiny_checkpoint

from caudal.config import EngineConfig
from caudal.constrain.matcher import Matcher
from caudal.constrain.output_rule import OutputRule, grammar_of
from caudal.engine import constraints
from caudal.engine.grammar_threads import MAX_LOST, GrammarThreads
from caudal.engine.load import load_engine
from caudal.errors import InvalidParameter
from caudal.messages import AddRequest, Vocabulary
from caudal.sampling_params import SamplingParams

EOS = 2
DIGITS = grammar_of(OutputRule(kind="regex", value="[0-9]+"))
TWO = grammar_of(OutputRule(kind="regex", value="[0-9]{2}"))


def vocabulary():
    """Single bytes, behind the control tokens of the tiny checkpoint."""
    tokens = [b"<unk>", b"<s>", b"</s>"]
    return Vocabulary(tokens=[*tokens, *(bytes([i]) for i in range(256))], special_ids=[0, 1, 2], eos_token_ids=[EOS])


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    tiny_checkpoint(path)
    return str(path)


@pytest.fixture
def engine(path):
    engine = load_engine(EngineConfig(model_path=path, backend="reference", max_model_len=96, max_num_seqs=8))
    engine.know_vocabulary(vocabulary())
    return engine


def request(name, grammar=DIGITS, **params):
    return AddRequest(
        request_id=name,
        prompt_token_ids=[40, 50, 60],
        params=SamplingParams(**{"temperature": 3.0, "seed": 1, "max_tokens": 20, **params}),
        eos_token_ids=(EOS,),
        grammar=grammar,
    )


def run(engine, *requests, after_step=lambda: None):
    """Return token ids, finish reason and error of each request."""
    for one in requests:
        engine.add_request(one)
    found = {}
    while engine.has_work:
        for update in engine.step():
            said = found.setdefault(update.request_id, [[], None, None])
            said[0] += update.token_ids
            assert said[1] is None, "an update after the last"
            said[1:] = update.finish_reason, update.error
        after_step()
    return found


def text_of(token_ids):
    return bytes(token_id - 3 for token_id in token_ids if token_id > EOS).decode()


def test_a_complete_answer_ends_with_stop_whatever_else_is_asked(engine):
    asked = [
        request("plain", TWO),
        request("no end", TWO, ignore_eos=True),
        request("long", TWO, min_tokens=10),
        request("biased", TWO, logit_bias={EOS: -100.0}),
        request("penalised", TWO, frequency_penalty=2.0, repetition_penalty=2.0, logprobs=2),
        request("greedy", TWO, temperature=0.0),
    ]
    for name, (token_ids, reason, error) in run(engine, *asked).items():
        assert (len(token_ids), token_ids[-1], reason, error) == (3, EOS, "stop", None), name
        assert text_of(token_ids).isdigit()


def test_what_may_go_on_goes_on_as_long_as_asked(engine):
    found = run(
        engine,
        request("no end", ignore_eos=True),
        request("long", min_tokens=12),
        request("stop token", stop_token_ids=tuple(range(3 + 48, 3 + 58)), min_tokens=5),
    )
    assert (len(found["no end"][0]), found["no end"][1]) == (20, "length")
    assert len(found["long"][0]) > 12
    assert text_of(found["long"][0]).isdigit()
    # Every digit is a stop token: nothing else may follow, so min_tokens cannot be had.
    assert (len(found["stop token"][0]), found["stop token"][1]) == (1, "stop")


def test_others_are_not_constrained(engine):
    free = request("free", grammar="")
    alone = run(engine, free)
    assert run(engine, request("bound"), free)["free"] == alone["free"]


def test_a_grammar_that_fails_fails_alone(engine, monkeypatch):
    seen = []
    real = Matcher.fill_masks

    def failing(self, *args):
        seen.append(self)
        if self is seen[0] and seen.count(self) == 3:
            raise RuntimeError
        return real(self, *args)

    lone = run(engine, request("good"))
    monkeypatch.setattr(Matcher, "fill_masks", failing)
    found = run(engine, request("bad"), request("good"))
    assert sorted(reason for _, reason, _ in found.values()) == sorted(["error", lone["good"][1]])
    (failed,) = [name for name, (_, reason, _) in found.items() if reason == "error"]
    assert "the grammar of this answer cannot be followed" in found[failed][2]
    assert len(found[failed][0]) == 2
    if failed == "bad":
        assert found["good"] == lone["good"]
    assert run(engine, request("later"))["later"][1] in ("stop", "length")
    assert engine.stats().kv_blocks_used == 0


@pytest.mark.parametrize("num_behind", [1, 5])
def test_a_grammar_that_hangs_fails_alone(engine, monkeypatch, num_behind):
    monkeypatch.setattr(constraints, "MASK_TIMEOUT_S", 0.2)
    release = threading.Event()
    real = Matcher.fill_masks
    hung = []

    def hanging(self, *args):
        if not hung:
            hung.append(self)
            release.wait(30)
        return real(self, *args)

    names = [f"{n}" for n in range(1 + num_behind)]
    lone = run(engine, *map(request, names))
    monkeypatch.setattr(Matcher, "fill_masks", hanging)
    found = run(engine, *map(request, names))
    (failed,) = [name for name, (_, reason, _) in found.items() if reason == "error"]
    assert "took more than" in found[failed][2]
    assert all(found[name] == lone[name] for name in names if name != failed)
    assert run(engine, request("later"))["later"][1] in ("stop", "length")
    release.set()


def test_a_guess_that_hangs_fails_its_request_alone(engine, monkeypatch):
    monkeypatch.setattr(constraints, "MASK_TIMEOUT_S", 0.2)
    release = threading.Event()
    lone = run(engine, request("good"))
    monkeypatch.setattr(Matcher, "forced", lambda _: release.wait(30))
    (said,) = run(engine, request("bad")).values()
    assert said[1] == "error"
    assert said[2].startswith("the grammar of this answer took more than")
    monkeypatch.undo()
    assert run(engine, request("good")) == lone
    release.set()


def longest_step_of(engine, *requests):
    """Run; return what `run` does and the seconds that the longest step took."""
    times = [time.monotonic()]
    found = run(engine, *requests, after_step=lambda: times.append(time.monotonic()))
    return found, max(after - before for before, after in pairwise(times))


def test_many_slow_grammars_cost_the_others_no_more_than_one(path, monkeypatch):
    engine = load_engine(EngineConfig(model_path=path, backend="reference", max_model_len=96, max_num_seqs=24))
    engine.know_vocabulary(vocabulary())
    good = [request(f"good {n}") for n in range(4)]
    lone = run(engine, *good)
    release = threading.Event()
    real = constraints._writer

    def writer(row, seq, constraint, masks):
        return (lambda: release.wait(30)) if "slow" in seq.request_id else real(row, seq, constraint, masks)

    monkeypatch.setattr(constraints, "MASK_TIMEOUT_S", 0.5)
    monkeypatch.setattr(constraints, "_writer", writer)
    slow = [request(f"slow {n}") for n in range(16)]
    found, longest_s = longest_step_of(engine, *slow, *good)
    assert {name: found.pop(name) for name in lone} == lone
    assert {(said[1], len(said[0])) for said in found.values()} == {("error", 0)}
    assert longest_s < 2.0
    release.set()


def test_slow_guesses_cost_a_step_little_and_are_not_asked_for_again(engine, monkeypatch):
    monkeypatch.setattr(constraints, "DRAFT_TIMEOUT_S", 0.05)
    names = [f"{n}" for n in range(5)]
    lone = run(engine, *(request(name, ignore_eos=True) for name in names))
    asked = []

    def forced(self):
        asked.append(self)
        time.sleep(0.5)
        return []

    monkeypatch.setattr(Matcher, "forced", forced)
    found, longest_s = longest_step_of(engine, *(request(name, ignore_eos=True) for name in names))
    assert found == lone
    assert len(asked) == len(set(asked)) > 1
    assert longest_s < 1.0, "one guess, the mask behind it, and no other guess"


def test_masks_of_a_step_that_failed_do_not_reach_the_next(engine, monkeypatch):
    """The forward pass fails while a thread has not begun to write; it writes during a later step."""
    monkeypatch.setattr(constraints, "MASK_TIMEOUT_S", 0.2)
    release = threading.Event()
    real = Matcher.fill_masks
    late = []

    def slow(self, *args):
        if not late:
            late.append(engine._constraints._masks)
            release.wait(30)
        return real(self, *args)

    lone = run(engine, request("good", TWO))
    monkeypatch.setattr(Matcher, "fill_masks", slow)
    forward = engine._runner.forward

    def failing(_):
        monkeypatch.setattr(engine._runner, "forward", forward)
        raise RuntimeError

    monkeypatch.setattr(engine._runner, "forward", failing)
    assert run(engine, request("bad"))["bad"][1] == "error"
    assert run(engine, request("good", TWO)) == lone
    assert engine._constraints._masks is not late[0]
    release.set()


def test_a_grammar_that_cannot_be_built_is_refused(engine):
    engine.add_request(request("bad", '{"grammars": [{"lark_grammar": "start: ("}]}'))
    engine.add_request(request("worse", "no JSON"))
    refused = {}
    while engine.has_work:
        refused |= {update.request_id: update for update in engine.step()}
    assert {update.error_kind for update in refused.values()} == {"InvalidParameter"}
    assert sorted(refused) == ["bad", "worse"]


def test_a_grammar_needs_the_vocabulary(path):
    engine = load_engine(EngineConfig(model_path=path, backend="reference", max_model_len=96))
    with pytest.raises(InvalidParameter, match="vocabulary"):
        engine.add_request(request("a"))
    engine.know_vocabulary(msgspec.structs.replace(vocabulary(), eos_token_ids=[]))
    engine.add_request(request("a"))
    updates = []
    while engine.has_work:
        updates += engine.step()
    assert "no token that ends an answer" in updates[0].error


def test_requests_that_wait_for_their_grammar_can_be_aborted(engine):
    engine.add_request(request("a"))
    assert engine.stats().num_waiting == 1
    assert engine.abort("a").finish_reason == "abort"
    assert engine.abort("a") is None
    engine.add_request(request("b"))
    assert [update.request_id for update in engine.fail_all("gone")] == ["b"]
    assert not engine.has_work
    assert run(engine, request("a"))["a"][2] is None


def test_an_abort_in_the_middle_leaves_nothing(engine):
    steps = iter(range(100))

    def abort_at_third():
        if next(steps) == 3:
            engine.abort("gone")

    found = run(engine, request("gone", ignore_eos=True), request("stays", ignore_eos=True), after_step=abort_at_third)
    assert found["stays"][1] == "length"
    assert engine._constraints._by_request_id == {}


def test_forced_text_costs_few_steps(engine):
    fixed = grammar_of(OutputRule(kind="choice", value=["the only answer there is"]))
    found = run(engine, request("a", fixed, max_tokens=40))
    assert text_of(found["a"][0]) == "the only answer there is"
    assert engine.stats().num_steps < 12
    assert engine.stats().num_accepted_tokens > 12


def test_jobs_behind_those_that_never_return_get_threads_and_leave_none_behind():
    threads = GrammarThreads(2)
    num_before = threading.active_count()
    release = threading.Event()
    jobs = [threads.submit(lambda: release.wait(30)) for _ in range(7)] + [threads.submit(lambda: 7) for _ in range(7)]
    start_s = time.monotonic()
    assert not threads.wait_all(jobs, 0.4)
    assert time.monotonic() - start_s < 0.8
    assert [job.is_done for job in jobs] == [False] * 7 + [True] * 7
    release.set()
    assert threads.wait_all(jobs, 10)
    assert threads.call(lambda: 7, 10) == 7
    due_s = time.monotonic() + 10
    while threading.active_count() > num_before + 2 and time.monotonic() < due_s:
        time.sleep(0.01)
    assert threading.active_count() == num_before + 2


def test_threads_that_never_return_are_replaced_and_counted():
    threads = GrammarThreads(2)
    release = threading.Event()
    for _ in range(MAX_LOST):
        with pytest.raises(TimeoutError):
            threads.call(release.wait, 0.01)
        assert threads.call(lambda: 7, 10) == 7
    assert threads.is_overrun
    release.set()
    with pytest.raises(ZeroDivisionError):
        threads.call(lambda: 1 // 0, 10)
    for job in list(threads._lost):
        job.wait(10)
    assert not threads.is_overrun
