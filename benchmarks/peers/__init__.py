"""One module a contestant: how it is used properly, by its own documentation, for each work it can
do.

Every function is an opening (see benchmarks.stage), or makes one: it opens the clients that its
library wants opened once and yields a maker. A library is imported when its turn comes: one that is
not installed is a line in the table.
"""
