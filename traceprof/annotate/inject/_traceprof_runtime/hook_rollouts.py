"""Hooks for the phases of post-training: generation, rewards, log-probabilities, weights.

Four sources name them:

- Calls of libraries: ``generate`` of transformers, vLLM, and SGLang, and the timers that TRL, verl,
  NeMo-RL, and slime put around their phases.
- Steps of environments, and actions (`hook_environments`): a rollout lasts from the first pass
  without gradients after an update to the last step of the environment.
- Training passes after a rollout: an update lasts from the first pass, or the reset of gradients,
  to the last optimizer step before the next pass without gradients.
- Forward passes without gradients that decode: each call has one more token than the previous one,
  or a single token after a prompt. Their range is written when the sequence has ended, because only
  then is it known. A following pass over the whole sequences computes log-probabilities.

The mark ``generation.running`` is the number of sequences of a pass, if it changed. The marks
``generated.sequences`` and ``generated.tokens`` follow each generation; ``generated.least`` is a
lower bound instead (speculative decoding). Tokens of loops include padding after early ends.
"""

import asyncio
import functools
import inspect
import math
import threading

from . import session, steps
from .after_import import call_after_import, complain
from .clock import time_ns
from .coroutine_ranges import CoroutineRange, Timed
from .decoding import MIN_DECODED, READING, Sequence, count_generated, find_tokens, shape_of
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
    UNUSED,
    UPDATE,
    USED,
    phase_of_scores,
)

_MAX_EPOCHS = 16  # over the sequences of a rollout
_MAX_LENGTH_DIFFERENCE = 2  # log-probabilities shift the sequences by one token

# open_calls: number of open calls that generate. decoded: a `Sequence`. finished: number and length
# of the last generated sequences. update: [start, end] of the open update. rollout: [start, end,
# whether an environment made a step] since the last training pass. learns: whether a rollout
# preceded the first optimizer step. n_trained: number of other sequences in training passes since
# the last generation. counted: what the calls within an open generation generated.
# pass: phase, start, and end of the last pass without gradients, until something else begins.
local = threading.local()


def install_rollouts(torch):
    """Wrap the calls and timers of the libraries, once the program imports them."""
    session.at_end(end_spans)
    for block in (torch.no_grad, torch.inference_mode, torch.set_grad_enabled):
        replace(block, "__exit__", _wrap_exit(torch, block.__exit__))
    wraps = {ENGINE_STEPS[0]: [_wrap_engine]}
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
    """Mark the number of generated sequences, if it changed."""
    if local.__dict__.get("running") != n:
        local.running = n
        session.emitter().mark(RUNNING, n)


def _wrap_call(torch, owner, function, phase, module):
    owner = getattr(module, owner, None)
    original = getattr(owner, function, None)
    if original is not None and not inspect.iscoroutinefunction(original):
        replace(owner, function, in_phase(torch, original, phase))


def in_phase(torch, original, phase):
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
        outer, result = local.__dict__.get("counted"), None
        if phase == GENERATION:
            local.counted = (0, 0, 0)
        try:
            result = original(*args, **kwargs)
        finally:
            local.open_calls = n_open
            if phase == GENERATION:
                _count(emitter, outer, count_generated(torch, result, args, kwargs))
            _pop_phase(emitter)
            _extend_rollout(phase == ENVIRONMENT)
        return result

    return call


def _pop_phase(emitter):
    """End the range of a call or timer; what follows a pass within it is outside of it."""
    local.__dict__.pop("pass", None)
    emitter.pop()


def _count(emitter, outer, counted):
    """Add what a call generated to ``outer``, the counts of the call around it, or mark it.

    The result of the outer call is preferred: it lacks, for example, the answers of tools.
    """
    n_sequences, n_tokens, length = local.counted
    if counted[0]:
        n_sequences, n_tokens = counted[:2]
        length = max(length, counted[2])
    local.counted = outer
    if outer is None:
        _mark_generated(emitter, n_sequences, n_tokens, length)
    else:
        local.counted = outer[0] + n_sequences, outer[1] + n_tokens, max(outer[2], length)


def _mark_generated(emitter, n_sequences, n_tokens, length, decoded=None):
    is_speculative = decoded is not None and decoded.is_speculative
    local.finished, local.n_trained = (n_sequences, length), 0
    local.n_drafted = decoded.n_drafted if is_speculative else 0
    if n_sequences:
        emitter.mark("generated.sequences", n_sequences)
        if is_speculative:
            emitter.mark("generated.least", decoded.n_least)
        else:
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
        if not texts or not hasattr(context, "__enter__"):
            return context
        return Timed(context, functools.partial(_begin_timed, None, texts[0]), _pop_phase)

    replace(owner, name, timer)


def _wrap_context_class(torch, cls, argument):
    enter, leave = cls.__enter__, cls.__exit__

    @functools.wraps(enter)
    def __enter__(self):
        # Coroutines take turns, so timers of a thread need not nest.
        open_timers = local.__dict__.setdefault("open_timers", {})
        open_timers[id(self)] = _begin_timed(torch, getattr(self, argument, ""))
        return enter(self)

    @functools.wraps(leave)
    def __exit__(self, *error):
        try:
            return leave(self, *error)
        finally:
            emitter = local.__dict__.get("open_timers", {}).pop(id(self), None)
            if emitter is not None:
                _pop_phase(emitter)

    replace(cls, "__enter__", __enter__)
    replace(cls, "__exit__", __exit__)


def _begin_timed(torch, name):
    """Begin the range of a timer; return its emitter, or None if the timer names no phase.

    TRL's method computes log-probabilities of the model that is trained in its forward pass.
    """
    phase = TIMED.get(str(name).replace("/", ".").rpartition(".")[2])
    if phase is None or not session.active:
        return None
    if "per_token_logps" in name and torch is not None and torch.is_grad_enabled():
        return None
    end_spans()
    if asyncio._get_running_loop() is not None:
        return CoroutineRange(phase)
    emitter = session.emitter()
    emitter.push(phase, steps.number)
    return emitter


def begin_pass(torch, module, args, kwargs, name="eval"):
    """Note a forward pass called ``name``; return the phase of its range.

    Passes with gradients (or of modules that train) keep their name.
    """
    if name == "forward" or torch.is_grad_enabled():
        begin_training()
        _note_learning(torch, args, kwargs)
        return name
    start_ns, ends_decoding = time_ns(), "decoded" in local.__dict__
    phase = _phase_of_pass(torch, module, args, kwargs)
    local.started = phase, time_ns()
    if ends_decoding and phase in (LOGPROBS, REWARD):  # writing the generation took time
        session.emitter().add_past(start_ns, local.started[1], phase, steps.number)
    return "eval" if phase in (GENERATION, READING) else phase


def _phase_of_pass(torch, module, args, kwargs):
    """Return the phase of a pass without gradients."""
    _end_update()
    _extend_rollout()
    last = local.__dict__.pop("pass", None)
    if local.__dict__.get("open_calls"):
        return "eval"
    tokens = find_tokens(torch, args, kwargs)
    phase = _phase_of_decoded(torch, module, tokens, kwargs)
    if phase is not None or tokens is None:
        return phase or "eval"
    if not _is_whole_sequence(shape_of(tokens)):
        local.decoded = Sequence(module, tokens, time_ns())
        return GENERATION
    phase = phase_of_scores(type(module).__name__)
    if last is not None and phase == (LOGPROBS if last[0] == READING else last[0]):
        _extend_pass(phase, *last[1:])
    return phase


def _phase_of_decoded(torch, module, tokens, kwargs):
    """Return the phase of a pass that extends or reads the decoded sequences, or None: end them."""
    while "decoded" in local.__dict__:
        decoded = local.decoded
        if decoded.is_extended(torch, module, tokens, kwargs):
            if decoded.n_passes >= MIN_DECODED:
                _mark_running(decoded.batch)
            return GENERATION
        if decoded.is_read_by(module, tokens):
            return decoded.note_reader(module, tokens, time_ns())
        end_decoding()
        if decoded.rival is not None:
            local.decoded = decoded.rival
    return None


def end_pass():
    """Note the end of a forward pass."""
    state, now = local.__dict__, time_ns()
    phase, start_ns = state.pop("started", ("eval", now))
    if phase != "eval":
        state["pass"] = phase, start_ns, now
    _end_decoded_pass(phase, start_ns, now)
    end_training()


def _wrap_exit(torch, original):
    """Return the end of a block without gradients; it is also the end of the phase of a pass.

    Log-probabilities and samples are computed from the output of the pass, outside of modules.
    """

    @functools.wraps(original)
    def __exit__(self, *error):
        result = original(self, *error)
        last = local.__dict__.pop("pass", None)
        if last is not None:
            now = _extend_pass(*last)
            if now and not torch.is_grad_enabled():
                local.__dict__["pass"] = (*last[:2], now)
        return result

    return __exit__


def _extend_pass(phase, start_ns, end_ns):
    """Extend the phase of a pass until now, and return the time; None after longer, other work."""
    now = time_ns()
    if now - end_ns > end_ns - start_ns or not session.active:
        return None
    if not _end_decoded_pass(phase, start_ns, now):
        session.emitter().add_past(end_ns, now, phase, steps.number)
    return now


def _end_decoded_pass(phase, start_ns, end_ns):
    """Note the end of a pass of decoded sequences, or that may score them; return if it is one."""
    decoded = local.__dict__.get("decoded")
    if phase == READING and decoded is not None:
        decoded.score = start_ns, end_ns
    elif phase == GENERATION and decoded is not None:
        decoded.end_ns = end_ns
    return phase in (GENERATION, READING)


def _is_whole_sequence(shape):
    """Return whether tokens of this shape are generated sequences, or a part of their batch."""
    n_sequences, length = local.__dict__.get("finished", (0, 0))
    # Not all drafts of the last round were accepted.
    most = max(_MAX_LENGTH_DIFFERENCE, local.__dict__.get("n_drafted", 0))
    return shape[0] <= n_sequences and abs(shape[1] - length) <= most


def end_decoding():
    """Write the range of the sequences that were decoded last, if there are any."""
    local.__dict__.pop("pass", None)
    decoded = local.__dict__.pop("decoded", None)
    if decoded is None or not (decoded.is_speculative or decoded.n_passes >= MIN_DECODED):
        return
    emitter = session.emitter()
    emitter.add_past(decoded.start_ns, decoded.end_ns, GENERATION, steps.number)
    if decoded.score and not decoded.is_speculative:
        emitter.add_past(*decoded.score, LOGPROBS, steps.number)
    _mark_generated(emitter, decoded.n_sequences, decoded.n_tokens, decoded.length + 1, decoded)


def begin_training():
    """Note that a training pass, an optimizer step, or a reset of gradients starts."""
    end_decoding()
    _end_rollout()
    state = local.__dict__
    if "finished" in state and state.get("learns", True) and "update" not in state:
        now = time_ns()
        state["update"] = [now, now]


def _note_learning(torch, args, kwargs):
    """Record an empty range if training passes read generated sequences, or many more others."""
    state = local.__dict__
    n_sequences, length = state.get("finished", (0, 0))
    shape = shape_of(find_tokens(torch, args, kwargs)) if length else None
    if shape is None:
        return
    mark = USED
    if not _is_whole_sequence(shape):
        state["n_trained"] = state.get("n_trained", 0) + shape[0]
        if state["n_trained"] <= _MAX_EPOCHS * n_sequences:
            return
        mark, state["learns"] = UNUSED, False
        state.pop("update", None)
    state["n_trained"] = -math.inf
    emitter = session.emitter()
    emitter.push(mark, steps.number)
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


def note_action(is_new=True):
    """Note that the program acts on a pass without gradients; if not ``is_new``, it has acted."""
    state = local.__dict__
    if "rollout" in state and "decoded" not in state and (is_new or state["rollout"][2]):
        _extend_rollout(True)


def _extend_rollout(acts=False):
    """Note a pass without gradients, or an action, which the rollout includes.

    Passes after the last action, for example of a target network, belong to no rollout.
    """
    now = time_ns()
    rollout = local.__dict__.setdefault("rollout", [now, now, False])
    if acts:
        rollout[1:] = now, True


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
