"""Small scenes in which an unfair scheduler makes somebody wait too long. Each takes the core to be judged."""

from __future__ import annotations

from scheduler_traces import CORE


class Scene:
    """A scheduler whose sequences always sample token 0, and the step in which each request got its first token."""

    def __init__(self, core, num_blocks=1000, **config):
        self.core = core
        self.scheduler = core.Scheduler(
            core.SchedulerConfig(**{"block_size": 4, "max_model_len": 2000, "max_queue_len": 1000, **config}),
            (core.KVGroup(num_blocks),),
        )
        self.first_token, self.num_tokens, self.finished, self.steps = {}, {}, {}, 0
        self.next_prompt_token = 10

    def add(self, request_id, num_prompt_tokens, **more):
        prompt = tuple(range(self.next_prompt_token, self.next_prompt_token + num_prompt_tokens))
        self.next_prompt_token += num_prompt_tokens
        request = {"prompt_token_ids": prompt, "max_tokens": 2, **more}
        self.scheduler.add(self.core.Request(request_id=request_id, **request))

    def step(self):
        plan = self.scheduler.schedule()
        self.steps += 1
        assert self.steps < 500, "no end in sight"
        for update in self.scheduler.commit(plan, [0] * len(plan.sampling_rows)):
            self.first_token.setdefault(update.request_id, self.steps)
            self.num_tokens[update.request_id] = self.num_tokens.get(update.request_id, 0) + len(update.new_token_ids)
            if update.finish_reason:
                self.finished[update.request_id] = self.steps
        return plan


def a_long_prompt_does_not_stall_a_short_one(core=CORE):
    scene = Scene(core, max_num_seqs=8, max_num_batched_tokens=32)
    scene.add("long", 1000)
    scene.step()
    scene.add("short", 10)
    while "short" not in scene.first_token:
        scene.step()
    assert scene.first_token["short"] <= 3, "a short prompt waited for a long one"


def short_prompts_do_not_starve_a_long_one(core=CORE):
    scene = Scene(core, max_num_seqs=8, max_num_batched_tokens=32)
    scene.add("long", 480)
    for index in range(60):
        scene.add(f"short {index}", 30, max_tokens=1)
        scene.step()
        if "long" in scene.first_token:
            return
    raise AssertionError("a long prompt starved")


def decoding_goes_on_during_a_long_prompt(core=CORE):
    scene = Scene(core, max_num_seqs=8, max_num_batched_tokens=16)
    scene.add("chat", 4, max_tokens=100)
    scene.step()
    scene.add("long", 600)
    for _ in range(20):
        plan = scene.step()
        assert any(row.seq_id == 0 and row.samples for row in plan.rows), "a decoding sequence missed a step"


def paced_scene(core, num_chats):
    """Chats that generate, under a pace of twice their work; attention costs as much as a token every 1000 tokens."""
    more = {"prefill_per_decode": 2, "context_per_token": 1000, "max_model_len": 8000}
    scene = Scene(core, num_blocks=8000, max_num_seqs=32, max_num_batched_tokens=512, **more)
    for index in range(num_chats):
        scene.add(f"chat {index}", 4, max_tokens=2000)
    scene.step()
    return scene


def those_who_generate_keep_their_rhythm_beside_a_long_prompt(core=CORE):
    scene = paced_scene(core, 24)
    scene.add("long", 3000)
    chunks = []
    while "long" not in scene.first_token:
        plan = scene.step()
        long = next(row for row in plan.rows if row.seq_id == 24)
        assert len(plan.rows) == 25, "a decoding sequence missed a step"
        assert long.num_tokens * (1 + long.start / 1000) <= 2 * 24 * 1.2, (
            "a step took much longer than without the prompt"
        )
        chunks.append(long.num_tokens)
    assert chunks[0] == 48, "the pace of 24 chats is not used"
    assert len(chunks) <= 3000 * 2.5 / 48 * 1.2, "a long prompt was slower than the pace"


def few_who_generate_do_not_make_a_prompt_crawl(core=CORE):
    scene = paced_scene(core, 1)
    scene.add("prompt", 320)
    while "prompt" not in scene.first_token:
        scene.step()
    assert scene.first_token["prompt"] <= 1 + 320 * 1.5 / 32, "a prompt crawled beside a single chat"


def the_more_wait_the_more_of_the_step_is_theirs(core=CORE):
    scene = paced_scene(core, 24)
    for index in range(6):
        scene.add(f"prompt {index}", 600)
    plan = scene.step()
    assert plan.num_tokens == 24 + 6 * 48, "six who wait were treated as one"


def nobody_paces_a_prompt_alone(core=CORE):
    scene = Scene(core, max_num_seqs=8, max_num_batched_tokens=512, prefill_per_decode=2, context_per_token=10)
    scene.add("long", 1500)
    assert scene.step().num_tokens == 512, "a prompt was slowed for nobody"
    assert scene.step().num_tokens == 512, "a prompt was slowed for nobody"


def a_short_prompt_passes_a_long_one_at_a_pace(core=CORE):
    scene = paced_scene(core, 16)
    scene.add("long", 3000)
    for _ in range(20):
        scene.step()
    scene.add("short", 40)
    before = scene.steps
    while "short" not in scene.first_token:
        scene.step()
    assert scene.first_token["short"] - before <= 4, "a short prompt waited for a long one"


def a_busy_tenant_does_not_take_the_tokens_of_another(core=CORE):
    scene = Scene(core, max_num_seqs=16, max_num_batched_tokens=64)
    for index in range(12):
        scene.add(f"busy {index}", 200, tenant="busy")
    scene.step()
    scene.add("quiet", 96, tenant="quiet")
    while "quiet" not in scene.first_token:
        scene.step()
    # 96 tokens at half of 64 a step, and the quantum's rounding.
    assert scene.first_token["quiet"] <= 6, "a busy tenant took the tokens of a quiet one"


def a_busy_tenant_does_not_take_the_slots_of_another(core=CORE):
    scene = Scene(core, max_num_seqs=2, max_num_batched_tokens=64)
    for index in range(40):
        scene.add(f"busy {index}", 8, tenant="busy", max_tokens=4)
    scene.step()
    scene.add("quiet", 8, tenant="quiet")
    while "quiet" not in scene.first_token:
        scene.step()
    assert scene.first_token["quiet"] <= 8, "a busy tenant took the slots of a quiet one"


def tenants_get_equal_shares(core=CORE):
    scene = Scene(core, num_blocks=4000, max_num_seqs=30, max_num_batched_tokens=50)
    tenants = {}
    for index, (tenant, count) in enumerate([("a", 9), ("b", 3), ("c", 1)]):
        for number in range(count):
            tenants[scene.scheduler._next_seq_id] = tenant
            scene.add(f"{index} {number}", 1500 // count, tenant=tenant)
    computed = dict.fromkeys("abc", 0)
    for _ in range(30):
        for row in scene.step().rows:
            computed[tenants[row.seq_id]] += row.num_tokens
    assert max(computed.values()) - min(computed.values()) <= 2 * 4, f"unequal shares: {computed}"


def small_ones_keep_coming_until(scene, request_id):
    """Add a small request in each step, until that one has begun or 40 steps are over."""
    for index in range(40):
        scene.add(f"small {index}", 8, max_tokens=4)
        scene.step()
        if request_id in scene.first_token:
            return


def a_request_that_does_not_fit_lets_others_past_but_not_for_ever(core=CORE):
    scene = Scene(core, num_blocks=20, max_num_seqs=4, max_num_batched_tokens=64)
    scene.add("running", 20, max_tokens=30)
    scene.step()
    scene.add("large", 70)
    small_ones_keep_coming_until(scene, "large")
    assert "large" in scene.first_token, "a large request starved"
    assert scene.first_token["small 0"] < scene.first_token["large"], "a large request blocked the queue"


def an_urgent_large_request_is_not_hidden_by_a_less_urgent_one(core=CORE):
    begun = []
    for has_less_urgent in (False, True):
        scene = Scene(core, num_blocks=20, max_num_seqs=4, max_num_batched_tokens=64)
        scene.add("running", 20, max_tokens=30)
        scene.step()
        if has_less_urgent:
            scene.add("large", 70, priority=1)
        scene.add("small", 8, max_tokens=4)
        scene.step()
        scene.add("urgent large", 70)
        small_ones_keep_coming_until(scene, "urgent large")
        assert "urgent large" in scene.first_token, "an urgent large request starved behind a less urgent one"
        begun.append(scene.first_token["urgent large"])
    assert begun[1] <= begun[0] + 2, "an urgent large request waited for a less urgent one"


def an_urgent_request_takes_the_place_of_others(core=CORE):
    scene = Scene(core, max_num_seqs=2, max_num_batched_tokens=64)
    for index in range(4):
        scene.add(f"patient {index}", 8, max_tokens=50, priority=1)
    scene.step()
    scene.add("urgent", 8, priority=0)
    scene.step()
    assert scene.first_token.get("urgent") == 2, "an urgent request waited for a slot"
    scene = Scene(core, num_blocks=20, max_num_seqs=4, max_num_batched_tokens=80)
    scene.add("patient", 70, max_tokens=10, priority=1)
    scene.step()
    scene.add("urgent", 30, priority=0)
    scene.step()
    assert scene.first_token.get("urgent") == 2, "an urgent request waited for blocks"


def a_preempted_request_keeps_its_place_and_its_work(core=CORE):
    scene = Scene(core, num_blocks=12, max_num_seqs=3, max_num_batched_tokens=64)
    scene.add("first", 16, max_tokens=20)
    scene.add("second", 16, max_tokens=20)
    scene.add("third", 16, max_tokens=20)
    num_computed = 0
    while scene.scheduler.has_work:
        num_computed += scene.step().num_tokens
    assert scene.scheduler.stats().num_preemptions > 0, "the scene is too roomy"
    assert scene.finished["first"] <= scene.finished["second"] <= scene.finished["third"], "a place was lost"
    # 3 x 35 tokens, and what preemption may cost.
    assert num_computed <= 105 + 30, "preemption wasted work"


def identical_prompts_that_arrive_together_are_computed_once(core=CORE):
    scene = Scene(core, max_num_seqs=8, max_num_batched_tokens=32)
    for index in range(8):
        scene.next_prompt_token = 10
        scene.add(f"same {index}", 64, max_tokens=2)
    num_computed = 0
    while scene.scheduler.has_work:
        num_computed += scene.step().num_tokens
    assert num_computed <= 64 + 7 * 4 + 8, "a common prompt was computed more than once"


def one_who_never_had_a_turn_is_next(core=CORE):
    scene = Scene(core, max_num_seqs=1, max_num_batched_tokens=64)
    for index in range(50):
        scene.add(f"busy {index}", 8, tenant="busy")
    scene.step()
    scene.add("lone", 8, tenant="lone")
    while "lone" not in scene.first_token:
        scene.step()
    started = [name for name, step in scene.first_token.items() if step < scene.first_token["lone"]]
    assert started == ["busy 0"], "one who never had a turn waited for more than the place that was taken"


def asking_one_by_one_gains_no_turns(core=CORE):
    scene = Scene(core, max_num_seqs=1, max_num_batched_tokens=64)
    for index in range(10):
        scene.add(f"busy {index}", 8, tenant="busy", max_tokens=1)
    for index in range(40):
        scene.add(f"b {index}", 8, tenant="b", max_tokens=1)
        scene.add(f"c {index}", 8, tenant="c", max_tokens=1)
        if index > 1:
            scene.scheduler.abort(f"b {index - 1}")
            scene.scheduler.abort(f"c {index - 1}")
        scene.step()
    assert "busy 9" in scene.first_token, "those who ask one by one starved one who asked for much at once"


def the_less_urgent_start_some_day(core=CORE):
    scene = Scene(core, max_num_seqs=2, max_num_batched_tokens=64)
    scene.add("patient", 8, priority=5, max_tokens=4)
    for index in range(200):
        scene.add(f"urgent {index}", 8, priority=index % 2, tenant=f"{index % 3}")
        scene.add(f"urgent too {index}", 8, priority=0)
        scene.step()
        if "patient" in scene.finished:
            break
    else:
        raise AssertionError("a less urgent request starved")
    assert scene.steps > 8, "urgency was worth nothing"


def the_prompts_of_the_less_urgent_are_read_some_day(core=CORE):
    scene = Scene(core, num_blocks=4000, max_num_seqs=64, max_num_batched_tokens=64)
    scene.add("patient", 40, priority=5)
    for index in range(60):
        scene.add(f"urgent {index}", 100, max_tokens=1)
        scene.step()
        if "patient" in scene.first_token:
            return
    raise AssertionError("the prompt of a less urgent request starved")


SCENARIOS = (
    a_long_prompt_does_not_stall_a_short_one,
    short_prompts_do_not_starve_a_long_one,
    decoding_goes_on_during_a_long_prompt,
    those_who_generate_keep_their_rhythm_beside_a_long_prompt,
    few_who_generate_do_not_make_a_prompt_crawl,
    the_more_wait_the_more_of_the_step_is_theirs,
    nobody_paces_a_prompt_alone,
    a_short_prompt_passes_a_long_one_at_a_pace,
    a_busy_tenant_does_not_take_the_tokens_of_another,
    a_busy_tenant_does_not_take_the_slots_of_another,
    tenants_get_equal_shares,
    a_request_that_does_not_fit_lets_others_past_but_not_for_ever,
    an_urgent_large_request_is_not_hidden_by_a_less_urgent_one,
    an_urgent_request_takes_the_place_of_others,
    a_preempted_request_keeps_its_place_and_its_work,
    identical_prompts_that_arrive_together_are_computed_once,
    one_who_never_had_a_turn_is_next,
    asking_one_by_one_gains_no_turns,
    the_less_urgent_start_some_day,
    the_prompts_of_the_less_urgent_are_read_some_day,
)
