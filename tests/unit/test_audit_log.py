"""The audit log: whatever is done to its lines is found, whoever writes, whatever the disk does."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from caudal.server.audit import audit_files, audit_log
from caudal.server.audit.audit_files import append, files_of, lines_of, read_head, remove_older, verify_log
from caudal.server.audit.audit_log import AuditLog
from caudal.server.audit.chain import Head, make_line, verify

DAY = "2026-11-30"
records = st.lists(st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=9), max_size=3), max_size=12)


def chain_of(contents):
    head, lines = Head(), []
    for content in contents:
        line, head = make_line(head, {"event": "x", "body": content})
        lines.append(line)
    return lines, head


def check(lines, head):
    return verify((("f", i, line) for i, line in enumerate(lines, 1)), head)


@given(contents=records)
def test_an_untouched_log_is_whole(contents):
    lines, head = chain_of(contents)
    verdict = check(lines, head)
    assert verdict.broken is None
    assert verdict.num_lines == verdict.last_seq == len(contents)


@settings(deadline=None)
@given(contents=records.filter(lambda c: len(c) > 1), data=st.data())
def test_whatever_is_done_to_a_log_is_found(contents, data):
    lines, head = chain_of(contents)
    where = data.draw(st.integers(0, len(lines) - 1))
    what = data.draw(st.sampled_from(["byte", "drop", "swap", "repeat", "cut", "end"]))
    changed = list(lines)
    if what == "byte":
        at = data.draw(st.integers(0, len(lines[where]) - 1))
        other = data.draw(st.integers(1, 255))
        changed[where] = bytes(b ^ other if i == at else b for i, b in enumerate(lines[where]))
    elif what == "drop":
        del changed[where]
    elif what == "swap":
        other = data.draw(st.integers(0, len(lines) - 1).filter(lambda i: i != where))
        changed[where], changed[other] = changed[other], changed[where]
    elif what == "repeat":
        changed.insert(where, changed[where])
    elif what == "cut":
        changed[where] = changed[where][: data.draw(st.integers(0, len(lines[where]) - 1))]
    else:
        del changed[where:]
    verdict = check(changed, head)
    if what == "drop" and where == 0:  # as retention does: the log begins later, and says so
        assert verdict.first_seq == 2
        return
    assert verdict.broken is not None
    assert abs(verdict.broken.line - (where + 1)) <= len(lines)
    if what in ("byte", "cut"):
        assert verdict.broken.line in (where, where + 1, where + 2)


@pytest.mark.parametrize(
    ("change", "line", "reason"),
    [
        (lambda lines: [lines[0], lines[1].replace(b'"b1"', b'"b9"'), *lines[2:]], 2, "was changed"),
        (lambda lines: [*lines[:4], lines[4].replace(b'"b4"', b'"b9"')], 5, "was changed"),
        (lambda lines: lines[:3], 3, "its end is cut off"),
        (lambda lines: [lines[0], *lines[2:]], 2, "lines before it are missing"),
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], 2, "moved"),
        (lambda lines: [*lines[:2], lines[1], *lines[2:]], 3, "moved or repeated"),
        (lambda lines: [*lines[:2], lines[2][:20], *lines[3:]], 3, "no record"),
    ],
)
def test_verification_says_where_and_why(change, line, reason):
    lines, head = chain_of([f"b{i}" for i in range(5)])
    broken = check(change(lines), head).broken
    assert broken.line == line
    assert reason in broken.reason


def test_files_are_private_chained_over_days_and_verified(tmp_path):
    append(tmp_path, DAY, [{"n": 1}, {"n": 2}], durable=True)
    append(tmp_path, "2026-12-01", [{"n": 3}], durable=False)
    append(tmp_path, DAY, [{"n": 4}], durable=False)  # the clock went back
    assert [path.name for path in files_of(tmp_path)] == [f"audit-{DAY}.jsonl", "audit-2026-12-01.jsonl"]
    assert verify_log(tmp_path).num_lines == 4
    assert [json.loads(line)["n"] for _, _, line in lines_of(files_of(tmp_path))] == [1, 2, 3, 4]
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_a_line_that_a_crash_cut_off_is_taken_away_and_told(tmp_path):
    append(tmp_path, DAY, [{"n": 1}], durable=False)
    path = files_of(tmp_path)[0]
    with path.open("ab") as file:
        file.write(b'{"seq":2,"pre')
    append(tmp_path, DAY, [{"n": 2}], durable=False)
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert lines[1] | {"prev": ""} == {
        "seq": 2,
        "prev": "",
        "event": "recovered",
        "file": path.name,
        "discarded_bytes": 13,
    }
    assert verify_log(tmp_path).broken is None


def test_lines_that_the_head_does_not_know_yet_are_gone_on_from(tmp_path):
    append(tmp_path, DAY, [{"n": 1}], durable=False)
    old = (tmp_path / audit_files.HEAD).read_bytes()
    append(tmp_path, DAY, [{"n": 2}], durable=False)
    (tmp_path / audit_files.HEAD).write_bytes(old)  # a crash between the lines and the head
    append(tmp_path, DAY, [{"n": 3}], durable=False)
    assert verify_log(tmp_path).num_lines == 3
    assert verify_log(tmp_path).broken is None
    (tmp_path / audit_files.HEAD).unlink()
    append(tmp_path, DAY, [{"n": 4}], durable=False)
    assert verify_log(tmp_path).last_seq == 4


@pytest.mark.parametrize("harm", ["cut", "change"])
def test_harm_is_not_covered_up_by_what_is_written_later(tmp_path, harm):
    append(tmp_path, DAY, [{"n": 1}, {"n": 2}, {"n": 3}], durable=False)
    path = files_of(tmp_path)[0]
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2] if harm == "cut" else [*lines[:2], lines[2].replace(b'"n":3', b'"n":33')]))
    append(tmp_path, DAY, [{"n": 4}], durable=False)
    broken = verify_log(tmp_path).broken
    assert broken.line == 3
    assert ("missing" if harm == "cut" else "changed") in broken.reason


def test_several_processes_write_one_chain(tmp_path):
    code = (
        "import sys; from pathlib import Path; from caudal.server.audit.audit_files import append\n"
        f"for i in range(30): append(Path(sys.argv[1]), '{DAY}', [{{'who': sys.argv[2], 'n': i}}], durable=False)"
    )
    env = {"PYTHONPATH": str(Path(audit_files.__file__).parents[3])}
    command = [sys.executable, "-c", code, str(tmp_path)]
    both = [subprocess.Popen([*command, who], env=env) for who in "ab"]
    assert [process.wait(60) for process in both] == [0, 0]
    assert verify_log(tmp_path) == verify_log(tmp_path)
    assert verify_log(tmp_path).num_lines == 60
    assert verify_log(tmp_path).broken is None


def test_a_full_disk_leaves_no_half_batch(tmp_path, monkeypatch):
    append(tmp_path, DAY, [{"n": 1}], durable=False)
    before = files_of(tmp_path)[0].read_bytes()
    write, num_left = os.write, [1]

    def full(file, data):
        if num_left[0]:
            num_left[0] -= 1
            return write(file, data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        append(tmp_path, DAY, [{"n": 2}], durable=False)
    monkeypatch.undo()
    assert files_of(tmp_path)[0].read_bytes() == before
    monkeypatch.setattr(audit_files, "_keep_head", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with pytest.raises(OSError, match="full"):
        append(tmp_path, DAY, [{"n": 2}], durable=False)
    monkeypatch.undo()
    assert files_of(tmp_path)[0].read_bytes() == before
    append(tmp_path, DAY, [{"n": 2}], durable=False)
    assert verify_log(tmp_path).num_lines == 2


def test_retention_removes_old_days_and_the_rest_still_verifies(tmp_path):
    for day in ("2026-01-01", "2026-01-02", "2026-01-03"):
        append(tmp_path, day, [{"day": day}], durable=False)
    assert remove_older(tmp_path, "2026-01-02") == ["audit-2026-01-01.jsonl"]
    verdict = verify_log(tmp_path)
    assert (verdict.broken, verdict.first_seq, verdict.num_lines) == (None, 2, 2)
    assert remove_older(tmp_path, "2027-01-01") == ["audit-2026-01-02.jsonl"]
    append(tmp_path, "2027-01-01", [{}], durable=False)
    assert verify_log(tmp_path).broken is None


def test_what_waits_is_bounded_in_bytes(tmp_path, monkeypatch):
    log = AuditLog(tmp_path, retention_days=180)
    monkeypatch.setattr(log, "_thread", object())  # written by hand here
    monkeypatch.setattr(audit_log, "MAX_WAITING_BYTES", 1000)
    for n in range(10):
        log.add({"n": n, "prompts": msgspec.Raw(b'"' + b"x" * 300 + b'"')})
    assert log._write_batch()
    events = events_in(tmp_path)
    assert [event.get("n") for event in events] == [0, 1, 2, None]
    assert events[-1]["records"] == 7
    log.add({"n": 9, "prompts": msgspec.Raw(b"1")})
    assert log._write_batch()
    assert events_in(tmp_path)[-1]["prompts"] == 1


def events_in(tmp_path):
    return [json.loads(line) for _, _, line in lines_of(files_of(tmp_path))]


def test_a_log_writes_in_order_and_all_of_it_at_the_end(tmp_path):
    log = AuditLog(tmp_path, retention_days=180, clock=lambda: 86_400.5)
    for n in range(2000):
        log.add({"n": n})
    log.close()
    assert [event["n"] for event in events_in(tmp_path)] == list(range(2000))
    assert events_in(tmp_path)[0]["time"] == "1970-01-02T00:00:00.500Z"
    assert verify_log(tmp_path).broken is None


DAY_S = 86_400.0


@settings(deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from([0.0, 30.0, -30.0, DAY_S, -DAY_S]), st.sampled_from([0, 0, 0, 1])), max_size=40
    )
)
@example(steps=[(0.0, 0), (30.0, 0), (-30.0, 0), (30.0, 0)])
def test_whatever_the_clock_does_each_record_is_written_once_and_in_order(tmp_path_factory, steps):
    tmp_path = tmp_path_factory.mktemp("log")
    now = [5 * DAY_S - 10]
    log = AuditLog(tmp_path, retention_days=180, clock=lambda: now[0])
    log._thread = object()  # written by hand here
    for n, (move, num_batches) in enumerate(steps):
        now[0] += move
        log.add({"n": n})
        for _ in range(num_batches):
            if log._waiting:
                assert log._write_batch()
    while log._waiting:
        assert log._write_batch()
    assert [event["n"] for event in events_in(tmp_path)] == list(range(len(steps)))
    assert verify_log(tmp_path).broken is None


def test_a_log_keeps_its_days(tmp_path):
    now = [0.0]
    for day in range(5):
        now[0] = day * 86_400
        log = AuditLog(tmp_path, retention_days=2, clock=lambda: now[0])
        log.add({"day": day})
        log.close()
    assert [path.name for path in files_of(tmp_path)] == [f"audit-1970-01-0{day}.jsonl" for day in (3, 4, 5)]
    assert [event for event in events_in(tmp_path) if event.get("event") == "retention"][-1]["removed"] == [
        "audit-1970-01-02.jsonl"
    ]
    assert verify_log(tmp_path).broken is None


@pytest.mark.parametrize("strict", [False, True])
def test_what_cannot_be_written_waits_and_what_is_too_much_is_counted(tmp_path, monkeypatch, strict, caplog):
    monkeypatch.setattr(audit_log, "MAX_WAITING", 5)
    log = AuditLog(tmp_path / "gone", retention_days=180, strict=strict)
    monkeypatch.setattr(log, "_thread", object())  # written by hand here
    for n in range(8):
        log.add({"n": n})
    for _ in range(3):
        assert not log._write_batch()
    assert log.refuses is strict
    assert sum(record.levelname == "ERROR" for record in caplog.records) == 1
    (tmp_path / "gone").mkdir()
    assert log._write_batch()
    assert not log.refuses
    events = events_in(tmp_path / "gone")
    assert [event["n"] for event in events[:5]] == list(range(5))
    assert (events[5]["event"], events[5]["records"]) == ("lost", 3)
    assert read_head(tmp_path / "gone").seq == 6


@pytest.mark.parametrize("strict", [False, True])
def test_a_strict_log_that_is_too_slow_refuses_until_it_has_said_what_it_lost(tmp_path, monkeypatch, strict):
    monkeypatch.setattr(audit_log, "MAX_WAITING", 5)
    log = AuditLog(tmp_path, retention_days=180, strict=strict)
    monkeypatch.setattr(log, "_thread", object())  # written by hand here
    for n in range(5):
        assert not log.refuses
        log.add({"n": n})
    assert log.refuses is strict  # the next record would be lost
    log.add({"n": 5})
    assert log.refuses is strict
    assert log._write_batch()
    assert not log.refuses
    assert [event.get("records") for event in events_in(tmp_path)] == [*[None] * 5, 1]


def test_a_loss_is_told_even_if_nothing_else_is_to_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(audit_log, "MAX_WAITING_BYTES", 100)
    log = AuditLog(tmp_path, retention_days=180, strict=True)
    log.add({"prompts": msgspec.Raw(b'"' + b"x" * 300 + b'"')})
    due = time.monotonic() + 5
    while log.refuses:
        assert time.monotonic() < due
        time.sleep(0.01)
    log.close()
    assert [(event["event"], event["records"]) for event in events_in(tmp_path)] == [("lost", 1)]
