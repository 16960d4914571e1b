"""How fast: ours, its peers, plain clients and the floor, on the same work, in one run.

    python -m bench [--quick] [--out FOLDER] [--only CONTEST ...]

A *contest* (``contests/``) is a question, such as what a fresh hit costs. Its *subjects* (``subjects/``) answer it,
each in a process of its own (``worker.py``), before one origin in another (``origin.py``). They take turns: a round of
many operations each, in another order each time. What is reported is the median, over the rounds, of the ratio of two
subjects in the same round, so that whatever slows the machine for a while slows both.
"""
