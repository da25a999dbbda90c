"""Sweeps: any part of residuum over many models, on one machine, several GPUs or a cluster.

request   what a user asks for: a TOML file, options, or both
plan      the frozen tasks that this means, with content hash and dependencies
kinds     one function per kind of task, which with its check is the only place that knows the other parts
checks    what the options of a task may be
driver    hands ready tasks to an engine, files what comes back
engines   serial, process, ray: who does the work
folder    what a sweep leaves on disk, and what `residuum sweep status` reads
"""
