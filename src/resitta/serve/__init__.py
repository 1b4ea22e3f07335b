"""The service: predictions over HTTP from a model that goes on adapting to what it is asked.

Requests are decoded (`images`, `bodies`), predicted in small batches by a reader thread from an immutable copy of the
teacher (`reader`), and then learned from by the one writer thread that owns the adapter (`writer`). `engine` joins
them, `app` speaks HTTP, `page/` is what a browser sees at `/`.
"""
