"""kestrel-convert-config: conversion of a Scala Kestrel configuration to this server's TOML."""
