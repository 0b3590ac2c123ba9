"""Counts sequences and tokens: of the results of calls, of passes that decode, and of training."""

MIN_DECODED = 4  # passes; fewer may be batches that happen to grow
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
    """Sequences that forward passes without gradients extend token by token."""

    def __init__(self, module, shape, start_ns):
        self.module, self.start_ns, self.end_ns = id(module), start_ns, start_ns
        self.n_sequences, self.n_tokens, self.n_passes = shape[0], 0, 0
        self.batch, self.length, self.last = shape[0], shape[1], shape[1]
        self.is_cached = False
        self._parts = set()

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

    def add(self, shape):
        """Note a pass that adds a token."""
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


def count_trained(torch, module, args, kwargs, output):
    """Return the number of tokens, with padding, that a training pass reads; 0 if unknown.

    Integers of shape batch × length are tokens if they are ``input_ids``, or if the output has one
    vector for each of them. An embedding that the program calls by itself may embed other things.
    """
    try:
        shape = token_shape(torch, args, kwargs)
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
