"""Packages with the names of vLLM, SGLang, verl, OpenRLHF, and SkyRL: their calls are phases."""

import asyncio
import sys
import types

import pytest


def run_coroutine(coroutine):
    """Run a coroutine, also in a worker whose thread already has a loop of Playwright."""
    running = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        return asyncio.run(coroutine)
    finally:
        asyncio._set_running_loop(running)


FILES = {
    "vllm/entrypoints/llm.py": """
import types
class LLM:
    def generate(self, prompts, params=None):
        one = types.SimpleNamespace(token_ids=[1, 2, 3])
        return [types.SimpleNamespace(outputs=[one]) for _ in prompts]
    def sleep(self, level=1): pass
    def wake_up(self, tags=None): pass
""",
    "vllm/v1/engine/llm_engine.py": """
import types
class LLMEngine:
    def __init__(self):
        scheduler = types.SimpleNamespace(max_num_seqs=4)
        self.vllm_config = types.SimpleNamespace(scheduler_config=scheduler)
        self.left = 8
    def get_num_unfinished_requests(self):
        return self.left
    def step(self):
        self.left -= 2 if self.left > 2 else 1
        return []
""",
    "sglang/srt/entrypoints/engine.py": """
class Engine:
    def generate(self, prompt=None, stream=False):
        if stream:
            return iter([{"meta_info": {"completion_tokens": 9}}] * 2)
        return [{"text": "", "meta_info": {"completion_tokens": 5}} for _ in prompt]
    def update_weights_from_tensor(self, named_tensors): pass
    def release_memory_occupation(self, tags=None): pass
""",
    "verl/utils/profiler/performance.py": """
from contextlib import contextmanager
@contextmanager
def marked_timer(name, timing_raw, color=None):
    yield
    timing_raw[name] = 1
""",
    "openrlhf/trainer/ppo_utils/samples_generator.py": """
class SamplesGenerator:
    def generate_samples(self, **kwargs): return []
""",
    "openrlhf/trainer/ppo_utils/experience_maker.py": """
class RemoteExperienceMaker:
    def make_experience_batch(self, samples): return samples
""",
    "openrlhf/trainer/ppo_trainer.py": """
class BasePPOTrainer:
    def ppo_train(self, steps): return {}
    def broadcast_to_vllm(self): pass
""",
    "skyrl_train/utils/utils.py": """
class Timer:
    def __init__(self, message, update_dict=None):
        self.message = message
    def __enter__(self):
        return self
    def __exit__(self, exc_type, exc_val, exc_tb): pass
""",
}
FILES["verl/workers/engine_workers.py"] = """
class ActorRolloutRefWorker:
    def compute_log_prob(self, data): return data
    def update_actor(self, data): return data
    async def generate_sequences(self, data): return data
"""
FILES["slime/observability/timer.py"] = """
from contextlib import contextmanager
class Timer:
    @contextmanager
    def context(self, name): yield
def timer(name): return Timer().context(name)
"""
FILES["skyrl/train/utils/utils.py"] = FILES["skyrl_train/utils/utils.py"]
PACKAGES = sorted({file.partition("/")[0] for file in FILES})


@pytest.fixture
def emitted(runtime, monkeypatch, tmp_path):
    """Install the hooks and the packages; return the names of ranges and marks as they come."""
    for file, text in FILES.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in (path.parent, *path.parent.parents):
            if folder == tmp_path:
                break
            (folder / "__init__.py").touch()
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    session, rollouts = runtime("session"), runtime("hook_rollouts")
    found = []
    emitter = types.SimpleNamespace(
        push=lambda name, _=0: found.append(name),
        pop=lambda: None,
        mark=lambda name, n: found.append((name.rpartition(".")[2], n)),
        add_past=lambda _start, _end, name, _: found.append(name),
    )
    monkeypatch.setattr(session, "active", True)
    monkeypatch.setattr(session, "emitter", lambda: emitter)
    finders = list(sys.meta_path)
    blocks = {
        name: type(name, (), {"__exit__": lambda *_: None})
        for name in ("no_grad", "inference_mode", "set_grad_enabled")
    }
    torch = types.SimpleNamespace(
        Tensor=type("Tensor", (), {}), is_grad_enabled=lambda: False, **blocks
    )
    rollouts.install_rollouts(torch)
    yield found
    sys.meta_path[:] = finders
    for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
        del sys.modules[name]


def imported(name):
    __import__(name)
    return sys.modules[name]


def test_engines_generate_sleep_and_take_weights(emitted):
    llm = imported("vllm.entrypoints.llm").LLM()
    llm.wake_up()
    assert len(llm.generate(["a", "b"])) == 2
    llm.sleep()
    engine = imported("sglang.srt.entrypoints.engine").Engine()
    engine.generate(["a", "b", "c"])
    engine.update_weights_from_tensor([])
    engine.release_memory_occupation()
    assert emitted == [
        *("sleep_wake", "generation", ("sequences", 2), ("tokens", 6), "sleep_wake"),
        *("generation", ("sequences", 3), ("tokens", 15), "weight_sync", "sleep_wake"),
    ]


def test_running_sequences_of_vllm_are_marked_as_they_end_without_waiting_ones(emitted):
    engine = imported("vllm.v1.engine.llm_engine").LLMEngine()
    while engine.left:
        assert engine.step() == []
    assert emitted == [("running", n) for n in (4, 2, 1, 0)]
    del engine.vllm_config  # another version
    engine.step()


def test_a_stream_is_left_to_the_program(emitted):
    engine = imported("sglang.srt.entrypoints.engine").Engine()
    assert len(list(engine.generate(["a"], stream=True))) == 2
    assert emitted == ["generation"]


def test_timers_and_trainers_name_their_phases(emitted):
    times = {}
    performance = imported("verl.utils.profiler.performance")
    for name in ("step", "gen", "old_log_prob", "update_actor"):
        with performance.marked_timer(name, times, color="red"):
            pass
    assert set(times) == {"step", "gen", "old_log_prob", "update_actor"}
    samples = imported("openrlhf.trainer.ppo_utils.samples_generator").SamplesGenerator()
    maker = imported("openrlhf.trainer.ppo_utils.experience_maker").RemoteExperienceMaker()
    maker.make_experience_batch(samples.generate_samples())
    trainer = imported("openrlhf.trainer.ppo_trainer").BasePPOTrainer()
    trainer.ppo_train(1)
    trainer.broadcast_to_vllm()
    timer = imported("skyrl_train.utils.utils").Timer
    for name in ("generate", "fwd_logprobs_values_reward", "policy_train", "load_checkpoint"):
        with timer(name, {}):
            pass
    assert [name for name in emitted if isinstance(name, str)] == [
        *("generation", "logprobs", "update"),
        *("generation", "logprobs", "update", "weight_sync"),
        *("generation", "logprobs", "update"),
    ]


def test_workers_of_verl_and_timers_of_slime_name_their_phases(emitted):
    worker = imported("verl.workers.engine_workers").ActorRolloutRefWorker()
    assert worker.update_actor(worker.compute_log_prob(3)) == 3
    assert run_coroutine(worker.generate_sequences(4)) == 4  # its caller has a timer
    timer = imported("slime.observability.timer").timer
    for name in ("actor_train", "ref_log_probs", "data_preprocess"):
        with timer(name):
            pass
    assert emitted == ["logprobs", "update", "update", "logprobs"]


def test_timers_of_a_coroutine_name_phases_unless_coroutines_take_turns(emitted):
    timer = imported("skyrl.train.utils.utils").Timer

    async def train():
        with timer("step"), timer("fwd_logprobs_values_reward"):
            await asyncio.sleep(0)
        with timer("train_critic_and_policy"), timer("policy_train"):
            await asyncio.sleep(0)

    run_coroutine(train())
    assert emitted == ["logprobs", "update", "update"]
    emitted.clear()
    begun = asyncio.Event()

    async def generate():
        with timer("generate"):
            begun.set()
            await asyncio.sleep(0)

    async def update():
        await begun.wait()
        with timer("policy_train"):
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def both():
        await asyncio.gather(generate(), update())

    run_coroutine(both())
    assert emitted == []
