"""The admin port: what people and programs see of a server over HTTP, and what they may tell it."""
