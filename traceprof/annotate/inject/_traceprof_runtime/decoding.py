"""Counts sequences and tokens: of the results of calls, of passes that decode, and of training."""

from .rollout_calls import GENERATION, LOGPROBS, phase_of_scores

READING = "reading"  # phase of a pass that verifies drafts or scores them: not known yet
MIN_DECODED = 4  # passes; fewer may be batches that happen to grow
_MAX_RESUMED = 2  # tokens that a draft model with a cache reads after a verification
_pairs = set()  # (draft model, its reader), by id
_CACHES = ("past_key_values", "past", "cache", "kv_cache", "cache_params")


def count_generated(torch, result, args, kwargs):
    """Return the number of sequences and tokens that a call generated, and the longest length.

    (0, 0, 0) if unknown. Results are tensors of tokens, which begin with the prompt, or lists of
    requests: of vLLM with ``outputs``, each with ``token_ids``, of SGLang with ``meta_info``.
    TRL returns the tokens of prompts and completions first. A result that the program reads piece
    by piece stays unread.
    """
    try:
        sequences = getattr(result, "sequences", result)
        if isinstance(sequences, torch.Tensor):
            return _count_tensor(torch, sequences, args, kwargs)
        requests = [result] if isinstance(result, dict) else result
        if not isinstance(requests, (list, tuple)):
            return 0, 0, 0
        if isinstance(requests, tuple):
            return _count_completions(*requests[:3])
        lengths = []
        for request in requests:
            if isinstance(request, dict):
                lengths.append(request["meta_info"]["completion_tokens"])
            else:
                lengths += [len(output.token_ids) for output in request.outputs]
        return len(lengths), sum(lengths), 0
    except Exception:
        return 0, 0, 0


def _count_tensor(torch, sequences, args, kwargs):
    """Count the tokens of each sequence up to its first end token, without the padding after it.

    The tokens are copied to the CPU once, after the call has copied something for each token.
    """
    n, length = sequences.shape
    prompt = kwargs.get("input_ids", kwargs.get("inputs", args[1] if len(args) > 1 else None))
    is_encoder_decoder = getattr(getattr(args[0], "config", None), "is_encoder_decoder", 0)
    n_prompt = prompt.shape[-1] if isinstance(prompt, torch.Tensor) else 0
    n_prompt = 1 if is_encoder_decoder else n_prompt
    end = kwargs.get("eos_token_id")
    for config in (kwargs.get("generation_config"), getattr(args[0], "generation_config", None)):
        end = getattr(config, "eos_token_id", None) if end is None else end
    if end is None:
        return n, n * (length - n_prompt), length
    is_end = torch.isin(sequences[:, n_prompt:].cpu(), torch.as_tensor(end, device="cpu"))
    n_after = int((is_end.cumsum(1) - is_end.int()).clamp(max=1).sum())
    return n, n * (length - n_prompt) - n_after, length


def _count_completions(prompts, completions, is_generated=None):
    """Count lists of tokens; ``is_generated`` excludes tokens that tools returned."""
    n_tokens = sum(map(len, completions) if is_generated is None else map(sum, is_generated))
    return len(completions), n_tokens, max(map(len, prompts)) + max(map(len, completions))


class Sequence:
    """Sequences that forward passes without gradients extend token by token.

    Or several tokens at once (speculative decoding): after each round of drafts, another model, the
    reader, verifies them in one pass. How many it accepts is known only from the length of the next
    draft, so ``n_least`` is the least number of tokens. ``rival`` are the sequences that the reader
    extends if it is not a reader, and ``score`` is the time of its pass if this may be a score.
    """

    def __init__(self, module, tokens, start_ns, prefill_ns=None):
        shape = shape_of(tokens)
        self.module, self.start_ns, self.end_ns = id(module), start_ns, start_ns
        self.n_sequences, self.n_tokens, self.n_passes = shape[0], 0, 0
        self.batch, self.length, self.last = shape[0], shape[1], shape[1]
        self.is_cached = False
        self.reader, self.rival, self.is_speculative, self.is_read = None, None, False, False
        self.score, self.prefill_ns = None, prefill_ns or start_ns
        self.begin, self.n_drafted, self.n_least, self.prompt = shape[1], 0, 0, tokens
        self._parts = set()
        self.add(shape)

    def has_part(self, module):
        """Return whether a module without tokens is a part of each pass, from the first ones on."""
        if self.n_passes < MIN_DECODED:
            self._parts.add(id(module))
        return id(module) in self._parts

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

    def is_read_by(self, module, tokens):
        """Return whether a pass of another model may verify the drafts of a round."""
        shape = shape_of(tokens)
        if self.is_read or shape is None or self.module == id(module) or shape[0] != self.batch:
            return False
        is_whole = shape[1] - self.length in (0, 1)
        return (
            self.reader in (None, id(module))
            and (is_whole or (self.is_cached and shape[1] <= self.n_drafted + 1))
            and phase_of_scores(type(module).__name__) == LOGPROBS
        )

    def note_reader(self, module, tokens, now_ns):
        """Note a pass for which `is_read_by` holds, and return its phase.

        The next pass shows whether it verifies drafts, scores sequences, or begins others.
        """
        is_score = self.n_passes >= MIN_DECODED and shape_of(tokens)[1] >= self.length
        self.reader, self.is_read = id(module), True
        # The target may have read the prompt first.
        prefill_ns = self.start_ns if self.n_passes == 1 else now_ns
        self.rival = None if is_score else Sequence(module, tokens, now_ns, prefill_ns)
        self.is_speculative |= (self.module, self.reader) in _pairs
        self.n_least += self.batch  # at least one token of each sequence, drafted or not
        return GENERATION if self.is_speculative else READING if is_score else "eval"

    def is_extended(self, torch, module, tokens, kwargs):
        """Return whether a pass extends the sequences, and note it if so; it may have no tokens."""
        if tokens is None:
            return self.has_part(module)
        shape = shape_of(tokens)
        is_next = (
            self.is_resumed(torch, module, tokens, kwargs)
            if self.is_read
            else self.is_continued(module, shape, kwargs)
        )
        if is_next:
            self.add(shape)
        return is_next

    def is_resumed(self, torch, module, tokens, kwargs):
        """Return whether a pass drafts the next tokens after a verification, and note it if so."""
        batch, length = shape_of(tokens)
        if id(module) != self.module or batch != self.batch:
            return False
        has_cache = self.is_cached or _has_cache(kwargs)
        least, most = (1, _MAX_RESUMED) if has_cache else (self.begin + 1, self.length + 2)
        is_next = least <= length <= most and (
            self.is_speculative
            or (has_cache and (self.begin > _MAX_RESUMED or _has_cache(kwargs)))
            or (not has_cache and _is_prefix(torch, self.prompt, tokens))
        )
        if is_next:
            _pairs.add((self.module, self.reader))
            self.n_least += 0 if has_cache else length - self.begin - 1
            self.start_ns = self.prefill_ns
            self.is_speculative, self.is_read, self.is_cached = True, False, has_cache
            self.n_drafted, self.length = 0, self.length if has_cache else length - 1
            self.begin = self.last = length
        return is_next

    def add(self, shape):
        """Note a pass that adds a token."""
        self.n_drafted += 1
        self.is_cached |= shape[1] == 1 and self.last >= 1 and self.n_passes > 0
        self.batch, self.last = shape
        self.length += self.n_passes > 0
        self.n_passes += 1
        self.n_tokens += shape[0]


def _has_cache(kwargs):
    return any(
        kwargs.get(name) is not None and not isinstance(kwargs[name], bool) for name in _CACHES
    )


def _is_prefix(torch, prompt, tokens):
    """Return whether sequences begin with a prompt; False while a CUDA graph is captured."""
    try:
        if prompt.is_cuda and torch.cuda.is_current_stream_capturing():
            return False
        return torch.equal(tokens[..., : prompt.shape[-1]], prompt)
    except Exception:
        return False


def find_tokens(torch, args, kwargs):
    """Return the first tensor of a call; None if it does not contain tokens, which are integers."""
    tensor = kwargs.get("input_ids")
    if tensor is None:
        tensors = (arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Tensor))
        tensor = next(tensors, None)
    if not isinstance(tensor, torch.Tensor) or tensor.dtype not in (torch.int64, torch.int32):
        return None
    is_batch = tensor.dim() == 2 and tensor.shape[1]
    return tensor if is_batch or tensor.dim() == 1 else None


def shape_of(tokens):
    """Return (sequences, tokens) of a tensor of tokens; None without one."""
    if tokens is None:
        return None
    return tuple(tokens.shape) if tokens.dim() > 1 else (1, tokens.shape[0])


def count_trained(torch, module, args, kwargs, output):
    """Return the number of tokens, with padding, that a training pass reads; 0 if unknown.

    Integers of shape batch × length are tokens if they are ``input_ids``, or if the output has one
    vector for each of them. An embedding that the program calls by itself may embed other things.
    """
    try:
        shape = shape_of(find_tokens(torch, args, kwargs))
        if shape is None:
            return 0
        if kwargs.get("input_ids") is None:
            first = output[0] if isinstance(output, tuple) else output
            if not isinstance(first, torch.Tensor):
                first = first.logits
            is_known = first.dim() == 3 and tuple(first.shape[:2]) == shape
            if not is_known or isinstance(module, torch.nn.Embedding):
                return 0
        return shape[0] * shape[1]
    except Exception:  # objects of the program
        return 0
