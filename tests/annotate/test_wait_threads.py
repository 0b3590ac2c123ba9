"""Waiting for work without a future, as that of torch 2.1 is, in threads."""

import threading


class Work:
    """Work that is done when somebody says so; waiting for it may fail."""

    def __init__(self, fails=False):
        self.is_done = threading.Event()
        self.fails = fails

    def wait(self):
        assert self.is_done.wait(10)
        if self.fails:
            raise RuntimeError("the group was destroyed")


def test_work_gets_a_future_that_calls_back_when_it_is_done(runtime):
    runtime("session").begin()
    threads = runtime("wait_threads").WaitThreads()
    called = []
    all_called = threading.Semaphore(0)

    def call(work):
        called.append(work)
        all_called.release()

    first, second = Work(), Work(fails=True)
    for work in (first, second):
        threads.with_future(work).get_future().add_done_callback(call)
    assert called == []
    second.is_done.set()
    assert all_called.acquire(timeout=10)
    assert called == [second]  # a second thread did not have to wait for the first
    first.is_done.set()
    assert all_called.acquire(timeout=10)
    assert called == [second, first]
    threads._stop()
    assert not any(thread.is_alive() for thread in threads._threads)
