"""Who may import whom, and what pure modules must not touch; tests/test_house.py checks it."""

FOLDERS = ("protocol", "kernels", "models", "actors", "web", "cli", "loadtest")

# What a folder may import of ours. Longer prefixes win: a file or sub-folder may be allowed more than its folder.
# An actor's folder knows the actors that it calls; who is wired to whom stands in the files above them.
_BODIES = ("web.arriving_body", "web.body_budget", "web.large_json")
_EXCHANGE = ("protocol", "web.access", *_BODIES, "web.errors", "web.exchange", "web.timers")
_ANSWERED = (
    "web.generation.asked",
    "web.generation.collected",
    "web.generation.disconnect",
    "web.generation.sse",
)
_AS_CHAT = ("web.openai.conversation", "web.openai.decode", "web.openai.request")  # dialects that become a chat
_DIALECTS = ("web.openai", "web.pooling", "web.responses", "web.anthropic", "web.ollama")
_ROUTED = ("web.arriving_upload", "web.asgi", "web.auth", "actors.batch", "actors.observe", "actors.usage")  # by Quart
_CALLED = (
    "protocol",
    "actors.errors",
    "actors.flight",
    "actors.histogram",
    "actors.logs",
    "actors.turns",
)  # by any actor
_STEPPED = (
    "protocol.events",
    "protocol.requests",
    "protocol.sampling",
    "protocol.settings",
    "protocol.steps",
)  # what a step consists of
_ON_A_DEVICE = (
    *("kernels", "models.checkpoint", "models.guides", "models.steps", *_STEPPED),
    *("models.errors", "models.host", "models.memory_plan", "models.stepper"),
    *("models.low_priority", "models.pages", "models.read_ahead"),
)
_LOADED = ("models.errors", "models.load", "models.low_priority", "models.stepper")  # what the executor uses of models
_COMPILED = (
    "models.checkpoint.grammar",
    "models.errors",
    "models.low_priority",
    "actors.executor.blocking_link",
)  # in its own process
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "protocol": ("protocol",),
    "kernels": ("kernels",),
    "models": ("models", "kernels", *_STEPPED),
    "models.checkpoint": (
        "models.checkpoint",
        "models.errors",
        "protocol.steps",
        "kernels.gemm.codes",
        "kernels.experts.routing",
    ),
    "models.guides": (
        "models.guides",
        "kernels.sampling",
        "models.checkpoint",
        "models.errors",
        "models.low_priority",
        *_STEPPED,
    ),
    "models.steps": ("models.guides", "models.steps", "kernels.sampling", *_STEPPED),
    "models.cpu": ("models.cpu", *_ON_A_DEVICE),
    "models.gpu": ("models.gpu", *_ON_A_DEVICE),
    "models.encoder": ("models.cpu", "models.encoder", *_ON_A_DEVICE),
    "models.reference": ("kernels", "models.checkpoint", "models.encoder", "models.reference"),
    "models.demo.training": ("models.demo.training",),
    "actors": ("protocol", "actors"),
    "actors.supervisor": (*_CALLED, "actors.supervisor"),
    "actors.gateway": (*_CALLED, "actors.gateway", "actors.supervisor.worker_status"),
    "actors.tokenizer": (*_CALLED, "actors.tokenizer", "actors.gateway", "models.checkpoint.text", "models.errors"),
    "actors.grammar": (*_CALLED, *_COMPILED, "actors.grammar", "actors.gateway", "actors.supervisor"),
    "actors.batch": (*_CALLED, "actors.batch", "actors.database"),
    "actors.usage": (*_CALLED, "actors.usage", "actors.database", "actors.gateway.history"),
    "actors.admission": (*_CALLED, "actors.admission", "actors.gateway"),
    "actors.scheduler": ("protocol", "actors.flight", "actors.scheduler", "actors.supervisor.step_cost"),
    "actors.scheduler.scheduler": ("protocol", "actors.flight", "actors.scheduler", "actors.turns"),
    "actors.detokenizer": (*_CALLED, "actors.detokenizer", "actors.gateway", "actors.tokenizer"),
    "actors.executor": (*_CALLED, "actors.executor", "actors.supervisor", *_LOADED),
    "actors.observe": (*_CALLED, "actors.observe", "actors.gateway", "actors.scheduler", "actors.supervisor"),
    "web": ("protocol", "actors.batch.folder", "actors.database", "actors.gateway", "actors.observe.server", "web"),
    "web.transport": (*_EXCHANGE, "web.transport", "web.asgi"),
    "web.generation": (*_EXCHANGE, "web.generation", "actors.front_actors", "actors.observe.server"),
    "web.openai": (*_EXCHANGE, *_ANSWERED, "web.openai"),
    "web.responses": (
        *(*_EXCHANGE, "web.asgi", "web.generation", "web.openai", "web.responses"),
        *("actors.database", "actors.gateway.gateway", "actors.observe.server"),
    ),
    "web.anthropic": (*_EXCHANGE, *_ANSWERED, *_AS_CHAT, "web.anthropic"),
    "web.pooling": (*_EXCHANGE, *_ANSWERED, "web.openai.request", "web.pooling"),
    "web.ollama": (*_EXCHANGE, *_ANSWERED, *_AS_CHAT, "web.openai.logprobs", "web.ollama", "web.pooling"),
    "web.routes": (*_EXCHANGE, *_ROUTED, *_DIALECTS, "web.routes", "web.generation"),
    "cli": FOLDERS,
    "loadtest": ("loadtest", "protocol"),
    "loadtest.compare": ("loadtest", "protocol", "actors.engine", "cli"),
    "loadtest.web.scripted_worker": ("loadtest", "protocol", "actors"),  # the other end of the link
    "loadtest.chaos.troubled_worker": ("loadtest", "protocol", "actors", "models"),
    "loadtest.chaos.troubled_server": ("loadtest", "actors.supervisor", "cli"),
    "loadtest.structured": ("loadtest", "protocol", "actors.grammar.compile", "models.checkpoint.grammar"),
    "loadtest.structured.speed": ("loadtest", "protocol", "actors.engine", "models.checkpoint"),
    "loadtest.quality": ("loadtest", "protocol", "models", "kernels.gemm", "kernels.simd", "actors.tokenizer"),
    "loadtest.device": ("loadtest", "protocol", "kernels", "models", "actors"),
}
DEVICE_LIBRARIES = frozenset({"torch", "triton", "numba", "llvmlite", "transformers"})
MAY_USE_DEVICE_LIBRARIES = ("kernels", "models", "actors.executor", "loadtest.device", "loadtest.peers")
# What pure modules decide depends on their arguments alone: no trio, no clock, no randomness of their own. That is so
# in these folders and in every module whose docstring says "Pure". `Random` may be imported: its seed is an argument.
PURE = ("protocol", "kernels", "models", "actors.scheduler")
IMPURE_LIBRARIES = frozenset({"trio", "time", "datetime", "random", "secrets", "uuid"})
IMPURE_NAMES = frozenset({"os.urandom", "os.getrandom"})
NOT_HIDDEN = frozenset({"random.Random"})
MAY_BE_IMPURE = {
    "actors.scheduler.scheduler": {"trio"},  # the actor beside the modules that decide for it
    "kernels.threads.pool": {"time"},  # tells how long it has been idle
    "models.pages": {"time"},  # waits until no step runs
    "models.cpu.stepper": {"time"},  # every step reports the seconds of its forward pass
    "models.encoder.stepper": {"time"},  # likewise
    "models.gpu.stepper": {"time"},  # likewise
    "models.demo.training.train": {"time"},  # a program that prints its progress
    "models.dot_speed": {"time"},  # measures
    "models.read_speed": {"time"},  # a program that measures
}
# The modules that the front process starts from. What they import when imported must leave the device libraries alone.
FRONT = ("cli.main", "cli.serve", "cli.several", "cli.front", "actors.engine", "web.app", "web.transport.transport")
