"""Kestrel's queues in PostgreSQL: a storage backend, `postgres`, as a package of its own.

    factory.py     the described string `postgres:...`, and what is made of it
    database.py    the three questions that a storage has (`IDatabase`), each of them a job for a connection
    connection.py  a connection: made when it is needed, given up when it is silent
    failures.py    what the database's errors mean to the storage
    session.py     what is set in each session, and why
    schema.py      the tables
    ownership.py   one owner at a time: the lock, the epoch, the number of the last batch
    batch_sql.py   a batch as SQL
    queries.py     SQL that reads
    cleanup.py     erasing, bit by bit, what queues have left behind
    testing.py     a private PostgreSQL for tests
"""
