"""What every store must do: one suite, run over memory and over Redis."""
