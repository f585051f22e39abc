"""Which engines there are."""

ENGINES = {
    "local": "launcher.engines.local.engine:LocalEngine",
    "docker": "launcher.engines.docker.engine:DockerEngine",
    "ssh": "launcher.engines.ssh.engine:SshEngine",
    "slurm": "launcher.engines.slurm.engine:SlurmEngine",
    "kubernetes": "launcher.engines.kubernetes.engine:KubernetesEngine",
}
"""`module:Class`, by name; the class has its settings' class as `Settings`."""
