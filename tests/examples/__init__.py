"""A reader tries these first: the examples and the code in the documents, all of it run."""
