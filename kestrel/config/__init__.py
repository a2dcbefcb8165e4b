"""The settings: what each one means, how a file is read into them, and which of them a queue gets."""
