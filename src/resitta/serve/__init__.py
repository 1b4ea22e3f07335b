"""The service: predictions over HTTP from a model that keeps adapting to its requests.

`app` speaks HTTP: `routes_predict` reads a body (`request_body`), has it decoded (`decoders`, `images`) and submits the
images to the `engine`. A reader thread predicts small batches with an immutable copy of the teacher (`reader`); the
writer thread owns the adapter and learns from them (`writer`). `page/` is the live page, `launch` the Python API.
"""
