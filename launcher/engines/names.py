"""Which engines there are."""

ENGINES = {
    "local": "launcher.engines.local.engine:LocalEngine",
    "docker": "launcher.engines.docker.engine:DockerEngine",
}
"""`module:Class`, by name; the class has its settings' class as `Settings`."""
