"""Tables of known methods and functions, for deciding from a name alone what a call does."""

from __future__ import annotations

from typing import Final

#: Only print or log their arguments.
TELLS: Final = frozenset({"print", "debug", "info", "warning", "error", "write", "log", "add_scalar"})
#: Seed a generator.
SEEDS: Final = frozenset(
    {"seed", "manual_seed", "manual_seed_all", "seed_all", "seed_everything", "set_seed"}
)
#: Make a generator from a seed.
SEEDED: Final = frozenset({"default_rng", "RandomState", "Random", "SeedSequence"})
#: NumPy functions that may use rejection sampling: the number of raw draws depends on the generator's state.
NUMPY_UNEVEN: Final = (
    "beta", "binomial", "bytes", "chisquare", "choice", "dirichlet", "f", "gamma", "geometric",
    "hypergeometric", "lognormal", "logseries", "multinomial", "multivariate_normal", "negative_binomial",
    "noncentral_chisquare", "noncentral_f", "normal", "permutation", "poisson", "randint", "randn",
    "random_integers", "shuffle", "standard_cauchy", "standard_gamma", "standard_normal", "standard_t",
    "vonmises", "wald", "zipf",
)  # fmt: skip
#: The same for Python's random.
PYTHON_UNEVEN: Final = frozenset({"shuffle", "sample", "choice", "randint", "randrange", "gauss"})
#: Change the object that they are called on.
MUTATES: Final = frozenset(
    {"append", "appendleft", "extend", "insert", "add", "update", "pop", "popleft"}
    | {"popitem", "remove", "clear", "put", "push", "setdefault"}
)
#: Tensor methods that overwrite all of a tensor's old values.
OVERWRITES: Final = frozenset(
    {"zero_", "fill_", "copy_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_", "log_normal_"}
)
#: Clip gradients.
CLIPS: Final = frozenset({"clip_grad_norm_", "clip_grad_value_"})
#: Running extremes: they do not count turns.
LIMITS: Final = frozenset({"max", "min"})
#: Make equal tensors from equal arguments; the first argument is the size of the first dimension.
MAKES: Final = frozenset({"ones", "zeros", "full", "eye", "arange", "generate_square_subsequent_mask"})
#: Depend only on their input, and keep its shape.
KEEPS_SHAPE: Final = frozenset(
    {"tril", "triu", "to", "bool", "float", "double", "long", "int", "cuda", "cpu", "masked_fill", "abs"}
    | {"sqrt", "exp"}
)


def in_place(word: str) -> bool:
    """Return True if the method is one of torch's in-place operations, by its trailing underscore."""
    return word.endswith("_") and not word.endswith("__") and word not in CLIPS and word != "requires_grad_"
