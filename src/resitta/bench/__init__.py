"""Benchmarks: `resitta.bench.run(model, images, methods)` compares methods, `reproduce` runs the paper's experiments.

protocol: how a stream is made. loop: the run loop and its metrics. record: what a run leaves. runner: jobs and their
records. executors: this process, several, or Ray. paper: the paper's numbers.
"""

from resitta.bench.api import run
from resitta.bench.experiments import reproduce
from resitta.bench.record import Records

__all__ = ["Records", "reproduce", "run"]
