"""The service: predictions over HTTP from a model that goes on adapting to what it is asked.

Requests are decoded (`images`, `request_body`), predicted in small batches by a reader thread with the newest published
weights (`reader`), and then learned from by the writer, which owns the adapter (`writer`). `service` joins them,
`app` speaks HTTP, `page/` is what a browser sees at `/`. Queue, thread and weights are those of `resitta.runtime`.
"""
