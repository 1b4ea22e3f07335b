"""The service: predictions over HTTP from a model that keeps adapting to its requests.

`app` speaks HTTP: `routes_predict` reads a body (`request_body`), has it decoded (`decoders`, `images`) and submits the
images to the `service`. A reader thread predicts small batches with the newest published weights (`reader`); the writer
owns the adapter and learns from them (`writer`). Queue, thread and weights are those of `resitta.runtime`. `page/` is
the live page, `launch` the Python API.
"""
