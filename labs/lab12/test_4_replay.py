"""Task 4: what must be kept so that a request goes on elsewhere, and once."""

import os
import random
import sqlite3
import subprocess
import sys
import time

import pytest

from grader import expect
from nanovllm.batching.events import Aborted, Admitted, Failed, Preempted, Queued
from nanovllm.generation.events import Completion, Finished, Prefilled, TokenGenerated
from nanovllm.generation.params import SamplingParams
from nanovllm.resilience.entry import Entry
from nanovllm.resilience.errors import JournalFullError
from nanovllm.resilience.journal import Journal, Record
from nanovllm.resilience.toy_engine import ToyEngine


def entry(**params):
    return Entry(4, (5, 6), SamplingParams(**params), seed=1)


def token(number, index=0, text="x"):
    return TokenGenerated(4, index, number, text, 0.0)


def done(index=0):
    return Finished(4, index, Completion(index, (1,), "x", "stop"), 0.0)


@pytest.mark.check(task=4, points=1, title="One engine, everything is heard")
def test_hear_all(seed):
    mine = entry()
    events = [
        Queued(4, 0, 0.0),
        Admitted(4, 0, 0.0),
        Prefilled(4, 2, 0.0),
        token(7, text="a"),
        Preempted(4, 0, 0.0),
        Admitted(4, 0, 0.0),
        token(7, text=""),
        token(9, text="bc"),
    ]
    expect(
        [mine.hear(event) for event in events],
        [True] * 8,
        call="hear, of eight events",
        given={"events": events},
        cause="a token that comes twice in a text is two tokens",
    )
    expect([mine.samples[0].token_ids, mine.samples[0].text], [[7, 7, 9], "abc"],
           call="token_ids and text of the sample")  # fmt: skip
    expect([mine.running, mine.ended], [True, False], call="running, ended")
    expect([mine.hear(done()), mine.running, mine.ended], [True, False, True],
           call="hear(Finished), then running, ended")  # fmt: skip


@pytest.mark.check(task=4, points=1, title="In the batch or not")
def test_running(seed):
    mine, story = entry(n=2), []
    for event in (
        Queued(4, 0, 0.0),
        Admitted(4, 0, 0.0),
        Admitted(4, 1, 0.0),
        Preempted(4, 0, 0.0),
        Aborted(4, 1, (), "", 0.0),
        Admitted(4, 0, 0.0),
    ):
        mine.hear(event)
        story.append([mine.running, mine.ended])
    wanted = [[False, False], [True, False], [True, False], [True, False], [False, False],
              [True, False]]  # fmt: skip
    expect(story, wanted, call="running, ended after each of six events of two samples")
    mine.resume()
    expect([mine.running, mine.ended], [False, False], call="running, ended after resume()",
           cause="nothing of it is in a batch of the new engine")  # fmt: skip
    mine.hear(Failed(4, 0, RuntimeError(), 0.0))
    expect(mine.ended, True, call="ended, when one is aborted and the other failed")


@pytest.mark.check(task=4, points=2, title="Another engine goes on")
def test_resume(seed):
    mine = entry(presence_penalty=1.0)
    for event in (Queued(4, 0, 0.0), Admitted(4, 0, 0.0), Prefilled(4, 2, 0.0), token(7), token(8)):
        mine.hear(event)
    expect(tuple(mine.resume()), (7, 8), call="resume() after tokens 7 and 8",
           cause="the new engine gets what was told, and goes on after it")  # fmt: skip
    events = [Queued(4, 0, 1.0), Admitted(4, 0, 1.0), Prefilled(4, 2, 1.0), token(8), token(7),
              done()]  # fmt: skip
    expect([mine.hear(event) for event in events], [False, True, False, True, True, True],
           call="hear, of the new engine's events", given={"events": events},
           cause="Queued and Prefilled once in all; a token is new, though it has an old "
           "number")  # fmt: skip
    expect(mine.samples[0].token_ids, [7, 8, 8, 7], call="token_ids")
    expect(tuple(entry().resume()), (), call="resume() before any token")


@pytest.mark.check(task=4, points=2, title="Who must begin anew says nothing twice")
def test_begin_anew(seed):
    for params in ({"n": 2}, {"logprobs": 1}):
        mine = entry(**params)
        told = [token(7, text="a"), token(8, text="b")]
        first = [Queued(4, 0, 0.0), Admitted(4, 0, 0.0), Prefilled(4, 2, 0.0)]
        for event in (*first, *told):
            mine.hear(event)
        expect(tuple(mine.resume()), (), call=f"resume() with {params}",
               cause="where can_go_on is False the new engine begins anew")  # fmt: skip
        expect([mine.hear(event) for event in first], [False, True, False],
               call=f"hear: Queued, Admitted, Prefilled of a second engine, with {params}",
               cause="Queued and Prefilled are heard once in all")  # fmt: skip
        found = [mine.hear(event) for event in (*told[:1],)]
        mine.resume()  # and dies again
        found += [mine.hear(event) for event in (*told, token(9, text="c"))]
        expect(
            found,
            [False, False, False, True],
            call="hear: token 7 of a second engine; 7, 8 and 9 of a third",
            cause="what was told before is not told again, through two deaths as well",
        )
        expect([mine.samples[0].token_ids, mine.samples[0].text], [[7, 8, 9], "abc"],
               call="token_ids, text")  # fmt: skip
    mine = entry(n=2)
    for event in (token(1), done(), token(2, 1)):
        mine.hear(event)
    mine.resume()
    events = [Queued(4, 0, 0.0), Admitted(4, 0, 0.0), token(1), done(), Queued(4, 1, 0.0),
              Admitted(4, 1, 0.0), token(2, 1), token(3, 1), done(1), done(1)]  # fmt: skip
    expect([mine.hear(event) for event in events],
           [False] * 4 + [True, True, False, True, True, False],
           call="hear, where sample 0 had ended before the death", given={"events": events},
           cause="of a sample that has ended nothing more is heard")  # fmt: skip


@pytest.mark.check(task=4, points=2, title="A stream cut anywhere, any number of times")
def test_cut_anywhere(seed):
    kinds = ({"presence_penalty": 2.0, "frequency_penalty": 1.0}, {"repetition_penalty": 1.6},
             {"min_tokens": 8}, {"stop": ["e", "an", "q "]}, {"n": 2}, {})  # fmt: skip
    for number in range(24):
        draw = random.Random(seed + number)
        chosen = kinds[number % len(kinds)]
        params = SamplingParams(max_tokens=12, **chosen)
        prompt = [draw.randrange(3, 27) for _ in range(5)]
        plain = ToyEngine()
        plain.add_request(prompt, params, seed=9, request_id=4)
        truth = []
        while plain.has_unfinished:
            truth += [e for e in plain.step() if isinstance(e, TokenGenerated | Finished)]
        mine, heard, cuts = Entry(4, tuple(prompt), params, seed=9), [], 0
        while not mine.ended:
            engine = ToyEngine()
            engine.add_request(prompt, params, seed=9, request_id=4, output_token_ids=mine.resume())
            for _ in range(draw.randint(1, 6) if cuts < 4 else 99):
                if engine.has_unfinished:
                    heard += [event for event in engine.step() if mine.hear(event)]
            cuts += 1
        for index in range(params.n):
            words = [e.text for e in heard if isinstance(e, TokenGenerated) and e.index == index]
            told = [e.completion for e in truth if isinstance(e, Finished) and e.index == index]
            ends = [e.completion for e in heard if isinstance(e, Finished) and e.index == index]
            expect(["".join(words), ends], [told[0].text, told],
                   call=f"text and end of sample {index}, heard from {cuts} engines",
                   given={"params": chosen}, cause="as one engine that never fails")  # fmt: skip


def record(name, key=None, owner="me", digest="d"):
    return Record(name, owner, key, "/v1/completions", digest, b"{}")


@pytest.mark.check(task=4, points=1, title="A repeat is answered from the journal")
def test_idempotent(seed):
    journal = Journal(":memory:")
    names = [journal.accept(record(*args)).id for args in
             (("a", "k"), ("b", "k"), ("c", "k", "you"), ("d", "l"), ("e",), ("f",),
              ("h", "k", ""), ("i", "k", ""), ("j", ""), ("k", ""))]  # fmt: skip
    expect(
        names,
        ["a", "a", "c", "d", "e", "f", "h", "h", "j", "j"],
        call="ids that accept gives for ten records",
        cause="owner and key together are known again, an empty one, too; None is no key, and "
        "always new",
    )
    journal.end("a", 200, "text/plain", b"yes")
    again = journal.accept(record("g", "k", digest="other"))
    expect(
        [again.id, again.status, again.answer, again.digest],
        ["a", 200, b"yes", "d"],
        call="accept of a repeat, after the answer",
        cause="the first one, as it is kept",
    )
    journal.close()


@pytest.mark.check(task=4, points=1, title="Open requests and answers")
def test_open(seed):
    journal, start = Journal(":memory:"), time.time()
    for name in "cab":
        journal.accept(record(name))
    expect.that(
        start <= journal.find("c").accepted <= time.time(),
        "`accepted` of a record that is found is the time at which accept wrote it down",
    )
    expect([one.id for one in journal.open_requests()], ["c", "a", "b"], call="open_requests()",
           cause="in the order in which they came")  # fmt: skip
    journal.end("a", 201, "text/x", b"first")
    journal.end("a", 500, "text/y", b"second")
    journal.end("nobody", 200, "", b"")
    found = journal.find("a")
    expect([found.status, found.media_type, found.answer, found.open],
           [201, "text/x", b"first", False], call="find('a') after two ends",
           cause="the first answer stands")  # fmt: skip
    expect(journal.find("nobody"), None, call="find of an id that was ended only")
    journal.drop("c")
    journal.drop("nobody")
    expect([[one.id for one in journal.open_requests()], journal.find("c")], [["b"], None],
           call="open_requests(), find('c') after drop('c')")  # fmt: skip
    expect(journal.accept(record("c")).open, True, call="accept('c') after drop")
    journal.close()


@pytest.mark.check(task=4, points=1, title="Bounded, and no open one is forgotten")
def test_room(seed):
    journal = Journal(":memory:", most=3)
    for name in "abc":
        journal.accept(record(name, key=name))
    refused = expect.raises(JournalFullError, lambda: journal.accept(record("d")),
                            call="accept of a fourth, with most=3 and nobody answered")  # fmt: skip
    expect.that(str(refused), "the refusal is a sentence")
    expect(journal.accept(record("z", key="a")).id, "a", call="accept of a repeat, when it is full",
           cause="a repeat needs no room")  # fmt: skip
    expect([one.id for one in journal.open_requests()], ["a", "b", "c"], call="open_requests()")
    for name in "cb":
        journal.end(name, 200, "", b"")
    journal.accept(record("d"))
    left = [name for name in "abcd" if journal.find(name)]
    expect(left, ["a", "c", "d"], call="kept after one more, where c, then b was answered",
           cause="of the answered ones, the one that came first makes room")  # fmt: skip
    journal.close()


@pytest.mark.check(task=4, points=1, title="A smaller journal, a full disk")
def test_less_room(seed, tmp_path):
    path = tmp_path / "journal"
    journal = Journal(path, most=6)
    for name in "abcdef":
        journal.accept(record(name))
    for name in "fedc":
        journal.end(name, 200, "", b"")
    journal.close()
    journal = Journal(path, most=4)
    journal.accept(record("g"))
    left = [name for name in "abcdefg" if journal.find(name)]
    expect(left, ["a", "b", "f", "g"], call="kept of six, four of them answered, after one more "
           "with most=4", cause="as many make room as it takes")  # fmt: skip
    disk = sqlite3.connect(path)  # the disk is full: no row can be written
    for action in ("INSERT", "UPDATE"):
        disk.execute(f"CREATE TRIGGER full_{action} BEFORE {action} ON requests BEGIN "
                     "SELECT RAISE(FAIL, 'database or disk is full'); END")  # fmt: skip
    disk.commit()
    disk.close()
    expect.raises(JournalFullError, lambda: journal.accept(record("h", key="x")),
                  call="accept on a full disk")  # fmt: skip
    expect.raises(JournalFullError, lambda: journal.end("a", 200, "", b"yes"),
                  call="end on a full disk")  # fmt: skip
    expect([one.id for one in journal.open_requests()], ["a", "b", "g"], call="open_requests()",
           cause="what could not be written has not happened")  # fmt: skip
    expect(journal.find("f") is None, False, call="whether 'f', the oldest answer, is forgotten",
           cause="a request that is refused changes nothing")  # fmt: skip
    journal.close()


@pytest.mark.check(task=4, points=1, title="On the disk when accept returns")
def test_killed(seed, tmp_path):
    here = Journal(":memory:")  # what is not written says so here, not in another process
    here.accept(record("a"))
    here.end("a", 200, "text/plain", b"yes")
    here.close()
    path = tmp_path / "journal"
    code = (
        "import os, sys; from nanovllm.resilience.journal import Journal, Record\n"
        "journal = Journal(sys.argv[1])\n"
        "for n in 'ab': journal.accept(Record(n, '', n, '/', 'd', b'body ' + n.encode()))\n"
        "journal.end('a', 200, 'text/plain', b'yes')\n"
        "os._exit(9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], env=dict(os.environ),
                          capture_output=True, text=True, check=False)  # fmt: skip
    expect(done.returncode, 9, call="a process that writes, and ends without goodbye",
           given={"it said": done.stderr[-300:]})  # fmt: skip
    journal = Journal(path)
    expect(
        [[one.body for one in journal.open_requests()], journal.find("a").answer],
        [[b"body b"], b"yes"],
        call="open bodies, and the answer, read by another process",
    )
    journal.close()


@pytest.mark.check(task=4, points=1, title="A random history of the journal")
def test_random_journal(seed):
    for number in range(6):
        draw, most = random.Random(seed + number), 6
        journal, model = Journal(":memory:", most=most), {}
        for step in range(60):
            name, key = f"r{step}", draw.choice([None, *"xyz"])
            known = [n for n, one in model.items() if key and one[0] == key]
            action = draw.random()
            if action < 0.5:
                answered = [n for n, one in model.items() if one[1] is not None]
                try:
                    found = journal.accept(record(name, key)).id
                except JournalFullError:
                    found = "full"
                if known:
                    wanted = known[0]
                elif len(model) >= most and not answered:
                    wanted = "full"
                else:
                    wanted = name
                    if len(model) >= most:
                        del model[answered[0]]
                    model[name] = [key, None]
                expect(found, wanted, call=f"accept, action {step} of a history",
                       given={"kept": dict(model)})  # fmt: skip
            elif model:
                one = draw.choice(sorted(model))
                if action < 0.9:
                    journal.end(one, step, "", b"")
                    if model[one][1] is None:
                        model[one][1] = step
                else:
                    journal.drop(one)
                    del model[one]
            found = [one.id for one in journal.open_requests()]
            expect(found, [n for n, one in model.items() if one[1] is None],
                   call=f"open_requests(), after action {step} of a history")  # fmt: skip
        journal.close()
