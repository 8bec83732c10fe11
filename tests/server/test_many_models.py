"""Several models, each in its own engine process: loaded on demand, kept, unloaded. Real processes, no HTTP."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from byte_tokenizer import ByteTokenizer
from conftest import make_config
from test_engine_process import ask, token_bytes
from test_launch import is_running
from test_openai_routes import until as until_s

from caudal.errors import CheckpointError, EngineUnavailable, Overloaded
from caudal.server.many_models import ManyModels
from caudal.server.metrics import ServerMetrics
from caudal.server.model_catalog import ModelCatalog
from caudal.server.problems import HTTPProblem
from caudal.server.residency import FOREVER, Residency
from caudal.server.running_model import Memory, ModelStarter, RunningModel
from caudal.server.settings import ServedModel

pytestmark = pytest.mark.usefixtures("tests_importable")
PLENTY = 1 << 50


async def until(condition):
    """Wait, on a busy machine too."""
    await until_s(condition, timeout_s=20)


@pytest.fixture
def gates(tmp_path, monkeypatch):
    monkeypatch.setenv("SCRIPTED_GATES", str(tmp_path))
    return tmp_path


def processes_begun(gates, name):
    return [int(path.name.split(".")[-2]) for path in gates.glob(f"{name}.*.begun")]


def load_tokenizer(path, _chat_template):
    if path.startswith("no-tokenizer"):
        message = "there is no tokenizer"
        raise CheckpointError(message, path=path)
    return ByteTokenizer()


@asynccontextmanager
async def directory(*models, first=None, memory=None, clock=None, **residency):
    infos = [ServedModel(name=m, path=m) if isinstance(m, str) else m for m in models]
    catalog = ModelCatalog(lambda: infos)
    catalog.look_now()
    starter = ModelStarter(
        config=make_config(max_model_len=100_000),
        load_tokenizer=load_tokenizer,
        engine_factory="scripted_engine:load",
        metrics=ServerMetrics(),
        stall_s=0.5,
    )
    rules = Residency(**{"load_timeout_s": 20.0, **residency})
    more = {} if clock is None else {"clock": clock}
    many = ManyModels(catalog, starter, rules, memory or Memory(free_bytes=lambda: PLENTY), first, **more)
    many.infos = infos
    try:
        await many.start()
        yield many
    finally:
        await many.stop()


def states(many):
    return {status.name: status.state for status in many.statuses()}


def pid_of(many, name):
    return next(status.process_id for status in many.statuses() if status.name == name)


async def say(many, name, text="hello"):
    async with many.lease(name) as model:
        return await token_bytes(model.client, ask(f"say:{text}", uuid4().hex))


async def test_models_load_when_they_are_asked_for_and_live_apart():
    async with directory("a", "b", "c", first="a") as many:
        assert states(many) == {"a": "loaded", "b": "unloaded", "c": "unloaded"}
        assert await say(many, "b", "from b") == b"from b"
        assert await say(many, None, "from a") == b"from a"
        assert states(many) == {"a": "loaded", "b": "loaded", "c": "unloaded"}
        assert pid_of(many, "a") != pid_of(many, "b")
        assert [model.name for model in many.loaded()] == ["a", "b"]
        with pytest.raises(HTTPProblem, match="'d' is not served here"):
            await say(many, "d")


async def test_two_who_want_the_same_cold_model_share_one_load(gates):
    async with directory("gated") as many:
        waiting = [asyncio.create_task(say(many, "gated", str(i))) for i in range(5)]
        await until(lambda: processes_begun(gates, "gated"))
        (gates / "gated.open").touch()
        assert await asyncio.gather(*waiting) == [b"0", b"1", b"2", b"3", b"4"]
        assert len(processes_begun(gates, "gated")) == 1


async def test_a_waiter_who_leaves_does_not_end_the_load(gates):
    async with directory("gated") as many:
        first, second = (asyncio.create_task(say(many, "gated")) for _ in range(2))
        await until(lambda: processes_begun(gates, "gated"))
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        (gates / "gated.open").touch()
        assert await second == b"hello"


async def test_a_load_that_everybody_has_left_goes_on(gates):
    async with directory("gated") as many:
        only = asyncio.create_task(say(many, "gated"))
        await until(lambda: processes_begun(gates, "gated"))
        only.cancel()
        await asyncio.gather(only, return_exceptions=True)
        (gates / "gated.open").touch()
        await until(lambda: states(many) == {"gated": "loaded"})
        assert len(processes_begun(gates, "gated")) == 1


async def test_a_failed_load_tells_each_waiter_and_a_later_request_tries_again(gates):
    now = [100.0]
    async with directory("gated", "b", clock=lambda: now[0]) as many:
        waiting = [asyncio.create_task(say(many, "gated")) for _ in range(3)]
        await until(lambda: processes_begun(gates, "gated"))
        (gates / "gated.broken").touch()
        errors = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(error) for error in errors} == {HTTPProblem}
        assert len(set(map(id, errors))) == 3
        assert errors[0].problem.status == 500
        assert errors[0].problem.code == "model_load_failed"
        assert "'gated' cannot be loaded: the file ends too early" in str(errors[0])
        assert many.statuses()[0].error == "the file ends too early"
        assert many.healthy
        assert not any(map(is_running, processes_begun(gates, "gated")))
        (gates / "gated.broken").unlink()
        (gates / "gated.open").touch()
        now[0] += 6
        assert await say(many, "gated") == b"hello"
        assert many.statuses()[0].error is None


@pytest.mark.parametrize("again", ["later", "file", "administrator"])
async def test_a_model_that_cannot_be_loaded_makes_nobody_leave(gates, again):
    now, infos = [100.0], [ServedModel(name="gated", path="gated"), ServedModel(name="b", path="b")]
    (gates / "gated.broken").touch()
    async with directory(*infos, clock=lambda: now[0], max_loaded=1) as many:
        with pytest.raises(HTTPProblem, match="'gated' cannot be loaded"):
            await say(many, "gated")
        assert await say(many, "b") == b"hello"
        for _ in range(3):
            with pytest.raises(HTTPProblem, match="'gated' cannot be loaded: the file ends too early"):
                await say(many, "gated")
        assert states(many)["b"] == "loaded"
        assert len(processes_begun(gates, "gated")) == 1
        (gates / "gated.broken").unlink()
        (gates / "gated.open").touch()
        if again == "later":
            now[0] += 6
        elif again == "file":
            many.infos[0] = replace(infos[0], modified_s=5.0)
            many._catalog.look_now()
        else:
            await many.load("gated")
        assert await say(many, "gated") == b"hello"


async def test_each_failure_in_a_row_makes_the_pause_longer(gates):
    now = [100.0]
    (gates / "gated.broken").touch()
    async with directory("gated", clock=lambda: now[0]) as many:
        for pause_s in (5, 10, 20):
            with pytest.raises(HTTPProblem):
                await say(many, "gated")
            num_begun = len(processes_begun(gates, "gated"))
            now[0] += pause_s - 0.1
            with pytest.raises(HTTPProblem):
                await say(many, "gated")
            assert len(processes_begun(gates, "gated")) == num_begun
            now[0] += 0.2


@pytest.mark.parametrize(("first", "stays_s"), [("a", FOREVER), ("b", 5.0)])
async def test_requests_do_not_shorten_how_long_the_first_model_stays(first, stays_s):
    async with directory("a", "b", first=first) as many:
        await say(many, "a")
        many.keep("a", 5.0)
        assert many._slots["a"].keep_alive_s == stays_s


@pytest.mark.parametrize("name", ["broken", "silent", "no-tokenizer"])
async def test_whatever_keeps_a_model_from_loading_leaves_nothing_behind(name):
    async with directory(name, "b") as many:
        for _ in range(2):
            with pytest.raises(HTTPProblem, match=f"'{name}' cannot be loaded"):
                await say(many, name)
        assert pid_of(many, name) is None
        assert await say(many, "b") == b"hello"


async def test_a_file_known_to_be_broken_starts_no_process(gates):
    async with directory(ServedModel(name="gated", path="gated", error="it is cut short"), "b") as many:
        with pytest.raises(HTTPProblem, match="'gated' cannot be loaded: it is cut short"):
            await say(many, "gated")
        assert not processes_begun(gates, "gated")
        assert many.statuses()[0].error == "it is cut short"


async def test_the_first_model_that_cannot_be_loaded_is_the_servers_failure():
    with pytest.raises(CheckpointError, match="magic is"):
        async with directory("broken", "b", first="broken"):
            pass


async def test_an_idle_model_leaves_and_its_process_is_gone():
    async with directory("a", "b", first="a", keep_alive_s=0.1) as many:
        await say(many, "b")
        pid = pid_of(many, "b")
        assert is_running(pid)
        await until(lambda: states(many) == {"a": "loaded", "b": "unloaded"})
        assert not is_running(pid)
        assert await say(many, "b") == b"hello"
        assert pid_of(many, "b") != pid


async def test_a_model_in_use_never_leaves():
    async with directory("a", keep_alive_s=0.0) as many:
        async with many.lease("a") as model:
            pid = model.client.process_id
            for _ in range(3):
                await say(many, "a")
                assert states(many) == {"a": "loaded"}
            assert (await many.unload("a")).state == "loaded"
            assert await token_bytes(model.client, ask("say:still here")) == b"still here"
            assert many.statuses()[0].expires_at is None
        await until(lambda: states(many) == {"a": "unloaded"})
        assert not is_running(pid)


async def test_keep_alive_of_a_request_counts_until_the_model_is_unloaded():
    async with directory("a", keep_alive_s=FOREVER) as many:
        await say(many, "a")
        assert many.statuses()[0].expires_at is None
        many.keep("a", 1000.0)
        assert many.statuses()[0].expires_at is not None
        many.keep("a", 0.0)
        await until(lambda: states(many) == {"a": "unloaded"})
        await say(many, "a")
        assert many.statuses()[0].expires_at is None
        assert (await many.unload("a")).state == "unloaded"
        assert (await many.unload("a")).state == "unloaded"
        assert (await many.load("a")).state == "loaded"


async def test_the_least_recently_used_makes_way_when_there_may_be_no_more():
    async with directory("a", "b", "c", max_loaded=2) as many:
        await say(many, "a")
        await say(many, "b")
        await say(many, "a")
        pid = pid_of(many, "b")
        await say(many, "c")
        assert states(many) == {"a": "loaded", "b": "unloaded", "c": "loaded"}
        assert not is_running(pid)


async def test_models_make_way_when_memory_is_short():
    sizes = {"a": 40 << 30, "b": 30 << 30, "c": 50 << 30}
    held = {}

    def free():
        in_memory = {model.client.process_id: sizes[model.name] for model in many.loaded()}
        held.update(in_memory)
        return (100 << 30) - sum(in_memory.values())

    infos = [ServedModel(name=name, path=name, size_bytes=size) for name, size in sizes.items()]
    memory = Memory(free_bytes=free, held_bytes=lambda pid: held.get(pid, 0))
    async with directory(*infos, memory=memory) as many:
        await say(many, "a")
        await say(many, "b")
        free()
        assert states(many) == {"a": "loaded", "b": "loaded", "c": "unloaded"}
        await say(many, "c")  # 30 are free; with the 40 of a that is enough, and b may stay
        assert states(many) == {"a": "unloaded", "b": "loaded", "c": "loaded"}


async def test_when_all_are_busy_a_request_waits_and_is_then_told_what_is_in_the_way():
    async with directory("a", "b", first="a", max_loaded=1, load_timeout_s=0.3) as many:
        async with many.lease("a"):
            with pytest.raises(
                EngineUnavailable, match=r"no room for the model 'b' now: 'a' in memory, in use"
            ) as error:
                await say(many, "b")
            assert error.value.retry_after_s > 0
            assert many.healthy
        many._residency = Residency(max_loaded=1, load_timeout_s=20.0)  # a busy machine may take its time
        assert await say(many, "b") == b"hello"
        await until(lambda: states(many) == {"a": "unloaded", "b": "loaded"})


async def test_who_waits_for_room_gets_it_as_soon_as_there_is_some():
    async with directory("a", "b", max_loaded=1) as many:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(many.lease("a"))
            waiting = asyncio.create_task(say(many, "b"))
            await until(lambda: states(many) == {"a": "loaded", "b": "loading"})
        assert await waiting == b"hello"
        assert states(many) == {"a": "unloaded", "b": "loaded"}


async def test_a_model_that_is_never_idle_keeps_nobody_out_for_ever():
    async with directory("a", "b", max_loaded=1, patience_s=0.2) as many:
        num_answers = [0, 0]

        async def keep_busy(index):
            while True:
                async with many.lease("a"):
                    await asyncio.sleep(0.3)
                    num_answers[index] += 1

        users = [asyncio.create_task(keep_busy(0))]
        await until(lambda: states(many)["a"] == "loaded")
        await asyncio.sleep(0.15)
        users.append(asyncio.create_task(keep_busy(1)))  # from now on, one of the two always holds a lease
        try:
            async with asyncio.timeout(10):
                assert await say(many, "b") == b"hello"
                before = list(num_answers)
                await until(lambda: all(now > then for now, then in zip(num_answers, before, strict=True)))
                assert await say(many, "b") == b"hello"
        finally:
            for user in users:
                user.cancel()
            await asyncio.gather(*users, return_exceptions=True)
        assert not any(slot.makes_room for slot in many._slots.values())


async def test_a_load_that_is_ended_while_another_leaves_leaves_no_process(monkeypatch):
    leaving, stop = asyncio.Event(), RunningModel.stop

    async def slow_stop(self):
        leaving.set()
        await asyncio.sleep(0.1)
        await stop(self)

    monkeypatch.setattr(RunningModel, "stop", slow_stop)
    async with directory("a", "b", max_loaded=1) as many:
        await say(many, "a")
        process_id = pid_of(many, "a")
        waiting = asyncio.create_task(say(many, "b"))
        await leaving.wait()
        many._slots["b"].loading.cancel()
        await until(lambda: states(many)["a"] == "unloaded")
        assert not is_running(process_id)
        assert await waiting == b"hello"  # it had not asked for the load to be ended, and begins another one


async def test_who_asked_for_room_and_left_leaves_the_other_as_it_was():
    async with directory("a", "b", max_loaded=1, patience_s=0.0) as many, many.lease("a"):
        waiting = asyncio.create_task(say(many, "b"))
        await until(lambda: many._slots["a"].makes_room)
        late = asyncio.create_task(say(many, "a"))
        waiting.cancel()
        assert await late == b"hello"
        assert states(many)["a"] == "loaded"


async def test_a_load_without_room_that_nobody_waits_for_is_given_up():
    async with directory("a", "b", max_loaded=1) as many:
        async with many.lease("a"):
            waiting = asyncio.create_task(say(many, "b"))
            await until(lambda: states(many)["b"] == "loading")
            waiting.cancel()
            await until(lambda: states(many)["b"] == "unloaded")
        assert states(many)["a"] == "loaded"


async def test_many_requests_for_more_models_than_fit_all_end():
    names = ["a", "b", "c", "d"]
    async with directory(*names, max_loaded=2) as many:
        answers = await asyncio.gather(*(say(many, names[i % 4], str(i)) for i in range(24)))
        assert answers == [str(i).encode() for i in range(24)]
        assert list(states(many).values()).count("loaded") <= 2


async def test_a_slow_load_ends_the_wait_and_not_itself(gates):
    async with directory("gated", load_timeout_s=0.3) as many:
        with pytest.raises(EngineUnavailable, match="'gated' is still being loaded; try again"):
            await say(many, "gated")
        (gates / "gated.open").touch()
        await until(lambda: states(many) == {"gated": "loaded"})
        assert await say(many, "gated") == b"hello"


async def test_no_more_than_so_many_wait(gates):
    async with directory("gated", "a", max_waiting=2) as many:
        waiting = [asyncio.create_task(say(many, "gated")) for _ in range(2)]
        await until(lambda: processes_begun(gates, "gated"))
        with pytest.raises(Overloaded, match="2 requests already wait for a model") as error:
            await say(many, "a")
        assert error.value.retry_after_s > 0
        (gates / "gated.open").touch()
        await asyncio.gather(*waiting)
        assert await say(many, "a") == b"hello"


async def test_stopping_during_a_load_ends_it_and_tells_who_waits(gates):
    async with directory("a", "gated", first="a") as many:
        waiting = asyncio.create_task(say(many, "gated"))
        await until(lambda: processes_begun(gates, "gated"))
        assert await many.drain(1.0)
        with pytest.raises(EngineUnavailable, match="shutting down"):
            await waiting
        with pytest.raises(EngineUnavailable, match="shutting down"):
            await say(many, "a")
    assert not any(map(is_running, processes_begun(gates, "gated")))


async def test_the_death_of_one_process_leaves_the_others_answering():
    async with directory("a", "b", first="a") as many:
        await say(many, "b")
        pid = pid_of(many, "b")
        os.kill(pid, signal.SIGKILL)
        await until(lambda: many.sick() == ["b"])
        assert not many.healthy
        assert await say(many, "a") == b"hello"
        await until(lambda: many.healthy)
        assert pid_of(many, "b") != pid
        assert await say(many, "b") == b"hello"


async def test_a_stuck_step_names_its_model_and_no_other():
    async with directory("a", "b", first="a") as many:
        async with many.lease("b") as model:
            stuck = asyncio.create_task(token_bytes(model.client, ask("hang say:x")))
            await until(lambda: many.sick() == ["b"])
            assert await say(many, "a") == b"hello"
            stuck.cancel()
            await asyncio.gather(stuck, return_exceptions=True)
        await until(lambda: many.healthy)


async def test_every_change_is_told():
    async with directory("a", keep_alive_s=0.0) as many:
        with many.events.subscribe() as news:
            await say(many, "a")
            seen = [await asyncio.wait_for(news.get(), 10) for _ in range(4)]
        assert [(each.name, each.state) for each in seen] == [
            ("a", "loading"), ("a", "loaded"), ("a", "unloading"), ("a", "unloaded"),
        ]  # fmt: skip
        assert seen[1].max_model_len == 100_000


async def test_a_changed_file_is_loaded_anew_only_once_the_old_one_has_left():
    async with directory("a", keep_alive_s=FOREVER) as many:
        await say(many, "a")
        many.infos[0] = ServedModel(name="a", path="broken")
        await many.refresh()
        assert await say(many, "a") == b"hello"
        await many.unload("a")
        await until(lambda: many.served()[0].path == "broken" or many._catalog.look_now())
        with pytest.raises(HTTPProblem, match="magic is"):
            await say(many, "a")


async def test_a_model_whose_file_has_gone_can_be_unloaded_and_not_asked_for():
    async with directory("a", "b", keep_alive_s=FOREVER) as many:
        await say(many, "b")
        pid = pid_of(many, "b")
        del many.infos[1]
        many._catalog.look_now()
        with pytest.raises(HTTPProblem, match="'b' is not served here"):
            await say(many, "b")
        assert states(many) == {"a": "unloaded", "b": "loaded"}
        assert (await many.unload("b")).state == "unloaded"
        assert not is_running(pid)
        with pytest.raises(HTTPProblem, match="'b' is not served here"):
            await many.unload("b")


def test_what_a_process_holds_is_read_from_the_system(tmp_path):
    from caudal.server.running_model import held_bytes  # noqa: PLC0415

    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text("Name:\tx\nRssAnon:\t    100 kB\nRssFile:\t 5 kB\nRssShmem:\t 2 kB\n")
    assert held_bytes(7, tmp_path) == 102 << 10
    assert held_bytes(8, tmp_path) == 0
    assert held_bytes(os.getpid()) > 1 << 20 or not Path("/proc/self/status").exists()
