"""How the next token is chosen. Fields are checked at the edge: in range, with the model's defaults applied.

A new parameter is a field here and, in the order of a request's way: a field of the body (protocol/openai_requests.py),
read in web/openai/request.py; a column of the sampler's rows (kernels/sampling/rows.py), filled by
models/steps/sequences.py; the definition (kernels/sampling/reference.py), the CPU kernel with its condition for the
fast path (kernels/sampling/{cpu,filters}.py), and the GPU's (kernels/sampling/gpu_*.py). Users read docs/sampling.md.
"""

from msgspec import Struct

MAX_TOP_LOGPROBS = 20  # what OpenAI allows; bounds the response to 20 alternatives a token


class Sampling(Struct, frozen=True, kw_only=True):
    """Parameters of one sequence's sampler, in the order in which they change the logits.

    Random numbers depend only on `seed`, the token's index in the sequence and its id. So a request draws the same
    tokens whatever else is in the batch, after a preemption and after a restart of the worker. Without a seed, a
    request gets a random one when it is accepted; choice i of `n` uses `seed + i` (modulo 2**64).
    """

    repetition_penalty: float = 1.0  # multiplicative, on prompt and output tokens; 1 = off
    presence_penalty: float = 0.0  # subtracted once from every token in the output
    frequency_penalty: float = 0.0  # subtracted per occurrence in the output
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, bias added to its logit)
    allowed_tokens: bytes = b""  # a bit per token id, lowest first: other tokens are masked; empty = all are allowed
    bad_words: tuple[tuple[int, ...], ...] = ()  # token sequences: each one's last token is masked behind the others
    min_tokens: int = 0  # stop tokens are masked until this many tokens are generated
    temperature: float = 1.0  # 0 = greedy: the first of the largest logits
    top_k: int = 0  # 0 = all
    top_p: float = 1.0
    min_p: float = 0.0  # relative to the most probable token
    seed: int = 0  # 0 … 2**64 - 1
    logprobs: int | None = None  # None = off; n = of the chosen token and the top n
    prompt_logprobs: int | None = (
        None  # the same for the prompt's tokens: for an echo with logprobs, or beside the answer
    )
