"""Which engines there are."""

ENGINES = {
    "local": "launcher.engines.local.engine:LocalEngine",
    "slurm": "launcher.engines.slurm.engine:SlurmEngine",
}
"""`module:Class`, by name; the class has its settings' class as `Settings`."""
