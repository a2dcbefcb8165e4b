/*
 * Kestrel's thrift service. Framed transport, binary protocol (strict or not), port 2229 unless configured otherwise.
 *
 * Names, numbers and types are those of Twitter's Kestrel, so clients generated from its IDL work as they are.
 *
 * The requests of one connection are answered in their order. What the server refuses is answered with a
 * TApplicationException, whose message says why:
 *   6 (INTERNAL_ERROR)        refused: the server's status, a limit, a list of clients, a name, a disk that failed
 *   1 (UNKNOWN_METHOD)        no method of this service
 *   2 (INVALID_MESSAGE_TYPE)  the message is no call; there are no oneway methods
 *   7 (PROTOCOL_ERROR)        the message cannot be read, or an argument without a default is missing
 */

namespace java net.lag.kestrel.thrift
#@namespace scala net.lag.kestrel.thriftscala

// Not the file's own name, which Python knows as the server's package.
namespace py kestrel_thrift

/* One item, as get returns it. */
struct Item {
  /* What was put. */
  1: binary data

  /* What confirm and abort want to be given; 0 if the item is gone from the queue for good. */
  2: i64 id
}

/* A queue at a glance; all zeros for an alias and for a queue that does not exist. */
struct QueueInfo {
  /* The data of the next item, if there is one. */
  1: optional binary head_item

  /* How many items wait in the queue; open reads do not count. */
  2: i64 items

  /* The bytes of their data. */
  3: i64 bytes

  /* The bytes of the queue's journal files. */
  4: i64 journal_bytes

  /* For how many milliseconds the next item has been in the queue; 0 without one. */
  5: i64 age

  /* How many clients wait for an item. */
  6: i32 waiters

  /* How many items were handed out and are neither confirmed nor aborted yet. */
  7: i32 open_transactions
}

/* What the server takes from clients. */
enum Status {
  /* Told for a status that has no number here (WriteAvoid, or down while the server stops). It cannot be set. */
  NOT_CONFIGURED = 0,

  /* Neither reads nor writes; what was handed out before can still be confirmed and aborted. */
  QUIESCENT = 1,

  /* Reads, but no writes: nothing is put, flushed or deleted. */
  READ_ONLY = 2,

  /* Everything. */
  UP = 3,
}

service Kestrel {
  /*
   * Append items to a queue, which is made if it does not exist. Returns how many went in: at the first item that
   * the queue refuses (a limit of items, bytes or item size) the put ends, so these are the first ones.
   *
   * expiration_msec: from now; an item that is still there then is discarded, or moved where the queue is set to.
   * 0: never. Negative: it has expired already.
   *
   * If an item is larger than any request may bring, or there are more items than one call may bring, the answer is
   * an exception and nothing is put.
   */
  i32 put(1: string queue_name, 2: list<binary> items, 3: i32 expiration_msec = 0)

  /*
   * Take up to max_items from the head of a queue. A negative max_items takes as many as one reply can hold.
   *
   * timeout_msec: 0, what is there is returned at once. Else the call returns when it has max_items, or with what it
   * has (perhaps nothing) when the time is up.
   *
   * auto_abort_msec: 0, the items are gone from the queue for good and their ids are 0. Else each is an open read:
   * it must be confirmed within this time by its id, by this connection or another, or it goes back to the head of
   * the queue, as if it had been aborted.
   *
   * A connection that holds as many open reads of the queue as the server allows gets no more of them until it
   * confirms or aborts some.
   */
  list<Item> get(1: string queue_name, 2: i32 max_items, 3: i32 timeout_msec = 0, 4: i32 auto_abort_msec = 0)

  /*
   * Finish open reads: the items are done with. Returns how many there were; ids that are not open (any more), or
   * belong to another queue, are passed over.
   */
  i32 confirm(1: string queue_name, 2: set<i64> ids)

  /*
   * Give open reads back: the items go to the head of the queue. Returns how many there were; other ids are passed
   * over.
   */
  i32 abort(1: string queue_name, 2: set<i64> ids)

  /*
   * Look at a queue and its next item and take nothing. The item may be gone when the answer arrives.
   */
  QueueInfo peek(1: string queue_name)

  /*
   * Drop all items of a queue. Open reads stay open.
   */
  void flush_queue(1: string queue_name)

  /*
   * Drop all items of every queue. Open reads stay open.
   */
  void flush_all_queues()

  /*
   * Forget a queue, with its items, open reads and files.
   */
  void delete_queue(1: string queue_name)

  /*
   * The status that the server advertises.
   */
  Status current_status()

  /*
   * Change the server's status.
   */
  void set_status(1: Status status)

  /*
   * Which release of the server answers.
   */
  string get_version()
}
