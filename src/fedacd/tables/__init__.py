"""The paper's nine tables by command: which runs they need, what those came to, and what the paper has.

    declare, paper     the tables, and the paper's numbers
    wanted             the runs of a table, known without any data
    found, match       the runs that there are, and which is which
    look, estimate     what is done, what is missing, how long it takes
    train              what is missing
    cells, render      the numbers, and how they are written down
    merge, summaries   runs from several machines; a small file a run
    options, command   the command line

A module imports only from those above it, and from the rest of fedacd.
"""
