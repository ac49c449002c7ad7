"""The behaviour that every store must have: one suite, run over memory and over Redis."""
