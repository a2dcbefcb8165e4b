"""Folders of queues as the tools read them: the files and their contents."""
