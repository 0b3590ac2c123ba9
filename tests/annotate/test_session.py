"""Where events of a process go: one spool, whichever thread asks first, and none while held."""

import threading


def test_threads_that_open_at_the_same_time_share_a_spool(runtime, monkeypatch):
    """The thread that lets events through, and the program's, which has its next event by then."""
    session = runtime("session")
    session.begin()
    session.hold()
    made, emitters = [], []
    make = session.Spool

    def slow(*arguments):
        made.append(None)
        if len(made) == 1:
            other = threading.Thread(target=lambda: emitters.append(session.emitter()))
            other.start()
            other.join(0.2)  # it may not get in
        return make(*arguments)

    monkeypatch.setattr(session, "Spool", slow)
    threads = set(threading.enumerate())
    session.begin_capture()
    for thread in set(threading.enumerate()) - threads:
        if thread.name != "traceprof-spool":
            thread.join()
    assert len(made) == 1
    assert emitters == [session.emitter()]
    session.end_capture()
    assert not session.is_capturing()


def test_whoever_asks_for_the_spool_lets_nothing_through_that_is_held(runtime):
    session = runtime("session")
    session.begin()
    session.hold()
    held = session.emitter()
    session.spool()
    assert session.emitter() is held
