"""What the launcher runs on a host, by the Python there: it reads orders, a JSON object a line, and answers each.

Only the standard library is used, and of that what an old Python has: which one is there the launcher learns from the
answers. The files are sent along, in the order in which `agent.py` has them. No peer depends on all this: it ends with
the connection, and the peers go on. In the run's directory there:

<id>.yaml, <id>/    as `dfl-peer` has them     .<id>.lock   locked while the peer runs; holds its process id
.<id>.exit          the code it ended with     .<id>.run    of which run its files are
"""
