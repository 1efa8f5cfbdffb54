"""What each of several models gets of the machine, as settings of its own. Pure."""

from msgspec import structs

from ...protocol.settings import ServeSettings


def settings_of_each(settings: ServeSettings, cores: int) -> dict[str, ServeSettings]:
    """The settings of each model's engine, by name, in the order in which they were given.

    The threads are divided: with more threads than cores, those that run wait for those that do not. With fewer cores
    than models each model gets one.
    """
    threads = max(1, (settings.engine.threads or cores) // len(settings.models))
    return {
        model.name: structs.replace(
            settings,
            engine=structs.replace(settings.engine, model=model.path, threads=threads),
            served_model_name=model.name,
            models=(),
            aliases=(),
        )
        for model in settings.models
    }
