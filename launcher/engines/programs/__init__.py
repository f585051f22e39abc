"""Programs that engines start as processes of their own; the launcher imports `fork_server` and, of `ssh_host`, what
both ends share.

`fork_server` runs on this machine, as a fork of the launcher where that can be, and forks a peer in milliseconds.
`ssh_host` and `ssh_keeper` are sent to a host as text and run by the Python there, which may be an old one and need not
have dfl: they use the standard library alone, nothing of this package, and only what an old Python has. So does
`volume_agent`, which is sent into a pod. `slurm_job` and `slurm_task` are run by the launcher's own Python on the nodes
of a cluster; as there is a `slurm_task` beside every peer, it uses the standard library alone, too, and `slurm_job`
imports nothing that imports PyTorch.
"""
