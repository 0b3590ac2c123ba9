"""Hooks for the phases of post-training: generation, rewards, log-probabilities, weights.

Four sources name them:

- Calls of libraries: ``generate`` of transformers, vLLM, and SGLang, and the timers that TRL, verl,
  NeMo-RL, and slime put around their phases.
- Steps of environments: a rollout lasts from the first pass without gradients after an update to
  the last step of the environment.
- Training passes after a rollout: an update lasts from the first pass, or the reset of gradients,
  to the last optimizer step before the next pass without gradients.
- Forward passes without gradients that decode: each call has one more token than the previous one,
  or a single token after a prompt. Their range is written when the sequence has ended, because only
  then is it known. A following pass over the whole sequences computes log-probabilities.

The mark ``generation.running`` is the number of sequences of a pass, if it changed. The marks
``generated.sequences`` and ``generated.tokens`` follow each generation. Tokens include
the padding of sequences that ended early.
"""

import asyncio
import functools
import threading

from . import session, steps
from .after_import import call_after_import, complain
from .clock import time_ns
from .replaced import replace
from .rollout_calls import (
    CALLS,
    ENGINE_STEPS,
    ENVIRONMENT,
    GENERATION,
    LOGPROBS,
    REWARD,
    ROLLOUT,
    RUNNING,
    TIMED,
    TIMERS,
    UPDATE,
    USED,
)

_MIN_DECODED = 4  # passes; fewer may be batches that happen to grow
_MAX_LENGTH_DIFFERENCE = 2  # log-probabilities shift the sequences by one token
_MODELS_OF_REWARDS = ("Reward", "SequenceClassification")
_MODELS_OF_VALUES = ("Value", "Critic", "TokenClassification")
_CACHES = ("past_key_values", "past", "cache", "kv_cache", "cache_params")

# open_calls: number of open calls that generate. decoded: a `Sequence`. finished: number and length
# of the last generated sequences. update: [start, end] of the open update. rollout: [start, end,
# whether an environment made a step] since the last training pass. learns: whether a rollout
# preceded the first optimizer step. n_counted: number of counted generations.
local = threading.local()


def install_rollouts(torch):
    """Wrap the calls and timers of the libraries, once the program imports them."""
    session.at_end(end_spans)
    wraps = {"gymnasium": [functools.partial(_wrap_make, torch)], ENGINE_STEPS[0]: [_wrap_engine]}
    for (module, owner, function), phase in CALLS.items():
        wrap = functools.partial(_wrap_call, torch, owner, function, phase)
        wraps.setdefault(module, []).append(wrap)
    for module, path, argument in TIMERS:
        wraps.setdefault(module, []).append(functools.partial(_wrap_timer, torch, path, argument))
    for module, of_module in wraps.items():
        call_after_import(module, functools.partial(_wrap_all, module, of_module))


def _wrap_all(name, wraps, module):
    """Call each of ``wraps`` with a module; a failure is reported and changes nothing else."""
    for wrap in wraps:
        try:
            wrap(module)
        except Exception as error:
            complain("%s is not recorded" % name, error)


def _wrap_engine(module):
    """Wrap the step of vLLM's engine: a mark follows if the number of running sequences changed."""
    original = module.LLMEngine.step

    @functools.wraps(original)
    def step(self, *args, **kwargs):
        result = original(self, *args, **kwargs)
        if session.active:
            try:
                most = self.vllm_config.scheduler_config.max_num_seqs
                _mark_running(min(self.get_num_unfinished_requests(), most))
            except Exception:
                pass
        return result

    replace(module.LLMEngine, "step", step)


def _mark_running(n):
    """Mark the number of sequences that are still generated, if it changed."""
    if local.__dict__.get("running") != n:
        local.running = n
        session.emitter().mark(RUNNING, n)


def _wrap_make(torch, gymnasium):
    """Wrap ``gymnasium.make``: the outermost of the wrappers that it returns steps in a range."""
    original = gymnasium.make

    @functools.wraps(original)
    def make(*args, **kwargs):
        environment = original(*args, **kwargs)
        if session.active:
            environment.step = _in_phase(torch, environment.step, ENVIRONMENT)
        return environment

    replace(gymnasium, "make", make)


def _wrap_call(torch, owner, function, phase, module):
    owner = getattr(module, owner, None)
    original = getattr(owner, function, None)
    if original is not None:
        replace(owner, function, _in_phase(torch, original, phase))


def _in_phase(torch, original, phase):
    """Return ``original`` with a range of a phase around each call."""

    @functools.wraps(original)
    def call(*args, **kwargs):
        n_open = local.__dict__.get("open_calls", 0)
        if not session.active or (phase == ENVIRONMENT and n_open):
            return original(*args, **kwargs)
        end_spans()
        _extend_rollout(phase == ENVIRONMENT)
        emitter = session.emitter()
        emitter.push(phase, steps.number)
        local.open_calls = n_open + 1
        n_counted, result = local.__dict__.get("n_counted", 0), None
        try:
            result = original(*args, **kwargs)
        finally:
            local.open_calls = n_open
            is_counted = n_counted != local.__dict__.get("n_counted", 0)
            if phase == GENERATION and result is not None and not is_counted:
                _mark_generated(emitter, *count_generated(torch, result, args, kwargs))
            emitter.pop()
            _extend_rollout(phase == ENVIRONMENT)
        return result

    return call


def count_generated(torch, result, args, kwargs):
    """Return the number of sequences and tokens that a call generated, and the longest length.

    (0, 0, 0) if unknown. Results are tensors of tokens, which begin with the prompt, or lists of
    requests: of vLLM with ``outputs``, each with ``token_ids``, of SGLang with ``meta_info``. A
    result that the program reads piece by piece stays unread.
    """
    try:
        sequences = getattr(result, "sequences", result)
        if isinstance(sequences, torch.Tensor):
            n, length = sequences.shape
            prompt = kwargs.get(
                "input_ids", kwargs.get("inputs", args[1] if len(args) > 1 else None)
            )
            is_encoder_decoder = getattr(getattr(args[0], "config", None), "is_encoder_decoder", 0)
            n_prompt = prompt.shape[-1] if isinstance(prompt, torch.Tensor) else 0
            return n, n * (length - (1 if is_encoder_decoder else n_prompt)), length
        requests = [result] if isinstance(result, dict) else result
        if not isinstance(requests, (list, tuple)):
            return 0, 0, 0
        lengths = []
        for request in requests:
            if isinstance(request, dict):
                lengths.append(request["meta_info"]["completion_tokens"])
            else:
                lengths += [len(output.token_ids) for output in request.outputs]
        return len(lengths), sum(lengths), 0
    except Exception:
        return 0, 0, 0


def _mark_generated(emitter, n_sequences, n_tokens, length):
    local.finished = (n_sequences, length)
    if n_sequences:
        local.n_counted = local.__dict__.get("n_counted", 0) + 1
        emitter.mark("generated.sequences", n_sequences)
        emitter.mark("generated.tokens", n_tokens)


def _wrap_timer(torch, path, argument, module):
    """Wrap a function, method, or class that returns the context manager of a named phase."""
    owner, _, name = path.rpartition(".")
    owner = getattr(module, owner, None) if owner else module
    original = getattr(owner, name, None)
    if original is None:
        return
    if isinstance(original, type):
        _wrap_context_class(torch, original, argument)
        return

    @functools.wraps(original)
    def timer(*args, **kwargs):
        context = original(*args, **kwargs)
        texts = [arg for arg in (*args, kwargs.get(argument)) if isinstance(arg, str)]
        return _Timed(context, texts[0]) if texts and hasattr(context, "__enter__") else context

    replace(owner, name, timer)


def _wrap_context_class(torch, cls, argument):
    enter, leave = cls.__enter__, cls.__exit__

    @functools.wraps(enter)
    def __enter__(self):
        open_timers = local.__dict__.setdefault("open_timers", [])
        open_timers.append(_begin_timed(torch, getattr(self, argument, "")))
        return enter(self)

    @functools.wraps(leave)
    def __exit__(self, *error):
        try:
            return leave(self, *error)
        finally:
            emitter = local.open_timers.pop() if local.__dict__.get("open_timers") else None
            if emitter is not None:
                emitter.pop()

    replace(cls, "__enter__", __enter__)
    replace(cls, "__exit__", __exit__)


class _Timed:
    """A context manager of a library, with a range of its phase."""

    def __init__(self, context, name):
        self._context, self._name, self._emitter = context, name, None

    def __getattr__(self, name):
        return getattr(self._context, name)

    def __call__(self, *args, **kwargs):  # some timers are decorators as well
        return self._context(*args, **kwargs)

    def __enter__(self):
        self._emitter = _begin_timed(None, self._name)
        return self._context.__enter__()

    def __exit__(self, *error):
        try:
            return self._context.__exit__(*error)
        finally:
            if self._emitter is not None:
                self._emitter.pop()


def _begin_timed(torch, name):
    """Begin the range of a timer; return its emitter, or None if the timer names no phase.

    Timers of coroutines are omitted, because ranges of a thread must nest. The model that is
    trained computes log-probabilities as part of its forward pass.
    """
    phase = TIMED.get(str(name).replace("/", ".").rpartition(".")[2])
    if phase is None or not session.active or asyncio._get_running_loop() is not None:
        return None
    if phase == LOGPROBS and torch is not None and torch.is_grad_enabled():
        return None
    end_spans()
    emitter = session.emitter()
    emitter.push(phase, steps.number)
    return emitter


class Sequence:
    """Sequences that forward passes without gradients extend token by token."""

    def __init__(self, module, shape, start_ns):
        self.module, self.start_ns, self.end_ns = id(module), start_ns, start_ns
        self.n_sequences, self.n_tokens, self.n_passes = shape[0], 0, 0
        self.batch, self.length, self.last = shape[0], shape[1], shape[1]
        self.is_cached = False

    def is_continued(self, module, shape, kwargs):
        """Return whether a pass of ``module`` over tokens of this shape adds a token."""
        batch, length = shape
        if id(module) != self.module or batch > self.batch:
            return False
        if length == self.last + 1 and not self.is_cached:
            return True
        if length != 1:
            return False
        has_prompt = self.n_passes == 1 and self.last > 1
        return self.is_cached or has_prompt or _has_cache(kwargs)

    def add(self, shape):
        """Note a pass that adds a token; call `finish_pass` after it."""
        self.is_cached |= shape[1] == 1 and self.last >= 1 and self.n_passes > 0
        self.batch, self.last = shape
        self.length += self.n_passes > 0
        self.n_passes += 1
        self.n_tokens += shape[0]


def _has_cache(kwargs):
    return any(
        kwargs.get(name) is not None and not isinstance(kwargs[name], bool) for name in _CACHES
    )


def token_shape(torch, args, kwargs):
    """Return (sequences, tokens) of the first tensor of a call; None if it is no tensor of tokens.

    Tokens are integers.
    """
    tensor = kwargs.get("input_ids")
    if tensor is None:
        tensors = (arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Tensor))
        tensor = next(tensors, None)
    if not isinstance(tensor, torch.Tensor) or tensor.dtype not in (torch.int64, torch.int32):
        return None
    if tensor.dim() == 1:
        return 1, tensor.shape[0]
    return tuple(tensor.shape) if tensor.dim() == 2 and tensor.shape[1] else None


def begin_pass(torch, module, args, kwargs, name="eval"):
    """Note a forward pass called ``name``; return the phase of its range.

    Passes with gradients (or of modules that train) keep their name.
    """
    if name == "forward" or torch.is_grad_enabled():
        begin_training()
        _note_learning(torch, args, kwargs)
        return name
    _end_update()
    _extend_rollout()
    if local.__dict__.get("open_calls"):
        return "eval"
    shape = token_shape(torch, args, kwargs)
    if shape is None:
        return "eval"
    decoded = local.__dict__.get("decoded")
    if decoded is not None and decoded.is_continued(module, shape, kwargs):
        decoded.add(shape)
        if decoded.n_passes >= _MIN_DECODED:
            _mark_running(shape[0])
        return "eval"
    end_decoding()
    if _is_whole_sequence(shape):
        kind = type(module).__name__
        if any(word in kind for word in _MODELS_OF_VALUES):
            return "eval"
        return REWARD if any(word in kind for word in _MODELS_OF_REWARDS) else LOGPROBS
    local.decoded = Sequence(module, shape, time_ns())
    local.decoded.add(shape)
    return "eval"


def end_pass():
    """Note the end of a forward pass."""
    decoded = local.__dict__.get("decoded")
    if decoded is not None:
        decoded.end_ns = time_ns()
    if "rollout" in local.__dict__:
        _extend_rollout()
    end_training()


def _is_whole_sequence(shape):
    """Return whether tokens of this shape are generated sequences, or a part of their batch."""
    n_sequences, length = local.__dict__.get("finished", (0, 0))
    return shape[0] <= n_sequences and abs(shape[1] - length) <= _MAX_LENGTH_DIFFERENCE


def end_decoding():
    """Write the range of the sequences that were decoded last, if there are any."""
    decoded = local.__dict__.pop("decoded", None)
    if decoded is None or decoded.n_passes < _MIN_DECODED:
        return
    emitter = session.emitter()
    emitter.add_past(decoded.start_ns, decoded.end_ns, GENERATION, steps.number)
    _mark_generated(emitter, decoded.n_sequences, decoded.n_tokens, decoded.length + 1)


def begin_training():
    """Note that a training pass, an optimizer step, or a reset of gradients starts."""
    end_decoding()
    _end_rollout()
    state = local.__dict__
    if "finished" in state and state.get("learns", True) and "update" not in state:
        now = time_ns()
        state["update"] = [now, now]


def _note_learning(torch, args, kwargs):
    """Record an empty range for the analysis if a training pass reads generated sequences."""
    if local.__dict__.get("finished", (0, 0))[1]:
        shape = token_shape(torch, args, kwargs)
        if shape is not None and _is_whole_sequence(shape):
            emitter = session.emitter()
            emitter.push(USED, steps.number)
            emitter.pop()


def begin_optimizer():
    """Note that an optimizer steps; a program that trains before it generates only evaluates."""
    local.__dict__.setdefault("learns", "finished" in local.__dict__)
    begin_training()


def end_training():
    """Note that it has ended."""
    update = local.__dict__.get("update")
    if update is not None:
        update[1] = time_ns()


def _extend_rollout(has_environment=False):
    """Note a pass without gradients, or a step of an environment."""
    now = time_ns()
    rollout = local.__dict__.setdefault("rollout", [now, now, False])
    rollout[1:] = now, rollout[2] or has_environment


def _end_rollout():
    """Write the range of a rollout in an environment, if there was one."""
    start_ns, end_ns, has_environment = local.__dict__.pop("rollout", (0, 0, False))
    if has_environment:
        local.__dict__.setdefault("finished", (0, 0))
        session.emitter().add_past(start_ns, end_ns, ROLLOUT, steps.number)


def _end_update():
    """Write the range of the open update, if there is one."""
    update = local.__dict__.pop("update", None)
    if update is not None and update[1] > update[0]:
        session.emitter().add_past(*update, UPDATE, steps.number)


def end_spans():
    """Write the ranges that were open until now."""
    end_decoding()
    _end_update()
