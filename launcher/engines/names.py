"""Which engines there are."""

ENGINES = {
    "local": "launcher.engines.local.engine:LocalEngine",
    "ssh": "launcher.engines.ssh.engine:SshEngine",
}
"""`module:Class`, by name; the class has its settings' class as `Settings`."""
