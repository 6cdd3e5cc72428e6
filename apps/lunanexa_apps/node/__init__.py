"""The node agent: makes one machine's signed desired state true, and tells the controller what is.

``enrolment`` makes the machine a node and ``renewal`` keeps its certificate good, ``control`` speaks to the
controller, ``trust`` decides which documents are followed, ``service`` compares them with what runs, and one
``replica`` task owns each replica and drives the pure machine of ``lunanexa_core.lifecycle``. Whatever line the
agent dies at, the next one goes on from the store.
"""
