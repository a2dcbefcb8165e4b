"""kestrel-convert: conversion of journals to scrolls and back."""
