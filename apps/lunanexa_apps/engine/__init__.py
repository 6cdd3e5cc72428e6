"""The reference engine: an OpenAI-compatible model server without a model that needs a GPU.

One answer passes these places in this order, and each of them is the only one of its kind, so that a
change of conduct has one place to stand: ``app`` (who may call, which names are served), ``slots``
(who runs, who waits, who is refused), ``pacing`` (when a token is due), ``exchange`` (what leaves, byte
for byte, and how a stream ends), ``main`` (how the process starts and stops). A fault that the engine was told to
commit (``faults``) is committed in the place that it is a fault of.
"""
