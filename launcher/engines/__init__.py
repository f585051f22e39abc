"""Places that peers run in. `base.py` says what an engine is; an engine is one module, or a few that begin with its
name.

Only the names are here, so that the command line can list the engines without importing any of them: an engine is
imported when it is chosen.
"""

ENGINES = {
    "local": "launcher.engines.local:LocalEngine",
    "docker": "launcher.engines.docker:DockerEngine",
    "ssh": "launcher.engines.ssh:SshEngine",
    "slurm": "launcher.engines.slurm:SlurmEngine",
    "kubernetes": "launcher.engines.kubernetes:KubernetesEngine",
}
"""`module:Class`, by name; the class has its settings' class as `Settings`."""
